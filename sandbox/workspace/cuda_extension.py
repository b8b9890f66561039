"""Calls the kernels of this workspace from Python.  Fixed: it is put back before judging.

    import cuda_extension
    scale = cuda_extension.declare("void scale(float* out, const float* x, int64_t n, float by)")
    scale(out, x, x.numel(), 2.0)

`declare` takes one C prototype and returns a Python callable.  Tensors are passed as plain pointers, so the
library needs neither torch's headers nor pybind11.  torch is used here only to ask tensors for their type,
layout, device and address.  A library that was built as a Python module (pybind ABI) takes this module's place.
"""
import ctypes
import importlib.machinery
import importlib.util
import mmap
import os
import re
import sys

import torch

F, I = torch.float32, torch.int32
# What a pointer may point to: C name -> dtypes of the tensors that fit.  None: any (void*).
POINTEES = {
    "float": {F}, "double": {torch.float64}, "bool": {torch.bool}, "void": None,
    "__half": {torch.float16}, "half": {torch.float16}, "_Float16": {torch.float16},
    "__nv_bfloat16": {torch.bfloat16}, "nv_bfloat16": {torch.bfloat16}, "__bf16": {torch.bfloat16},
    "uint16_t": {torch.uint16, torch.float16, torch.bfloat16}, "int16_t": {torch.int16}, "short": {torch.int16},
    "int": {I}, "int32_t": {I}, "uint32_t": {torch.uint32}, "int64_t": {torch.int64}, "long": {torch.int64},
    "long long": {torch.int64}, "uint8_t": {torch.uint8, torch.bool}, "unsigned char": {torch.uint8, torch.bool},
    "int8_t": {torch.int8}, "char": {torch.int8},
}
INTEGERS = {   # C name -> ctypes type, lowest value, highest value
    "int": (ctypes.c_int, -2**31, 2**31 - 1), "int32_t": (ctypes.c_int32, -2**31, 2**31 - 1),
    "int64_t": (ctypes.c_int64, -2**63, 2**63 - 1), "long": (ctypes.c_long, -2**63, 2**63 - 1),
    "long long": (ctypes.c_longlong, -2**63, 2**63 - 1), "size_t": (ctypes.c_size_t, 0, 2**64 - 1),
    "unsigned": (ctypes.c_uint, 0, 2**32 - 1), "unsigned int": (ctypes.c_uint, 0, 2**32 - 1),
    "uint32_t": (ctypes.c_uint32, 0, 2**32 - 1),
    "uint64_t": (ctypes.c_uint64, 0, 2**64 - 1),
}
FLOATS = {"float": ctypes.c_float, "double": ctypes.c_double}

PROTOTYPE = re.compile(r'\s*(?:extern\s*"C"\s+)?(void|int)\s+([A-Za-z_]\w*)\s*\(([^()]*)\)\s*;?\s*', re.S)
PARAMETER = re.compile(r"(const\s+)?([A-Za-z_]\w*(?:\s+(?:long|char|int))?)(\s+const)?\s*(\*)?\s*"
                       r"(?:(?:const|__restrict__|__restrict|restrict)\b\s*)?\b([A-Za-z_]\w*)")
_library = None      # the ctypes library in use
_default = os.path.join(os.path.dirname(os.path.abspath(__file__)), "build", "cuda_extension.so")


def load(path):
    """Use the shared object at `path`.  Returns the module that `import cuda_extension` now gives:
    this one for the C ABI, the compiled one for the pybind ABI."""
    global _library
    path = os.path.abspath(path)
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as image:
        compiled = image.find(b"PyInit_cuda_extension") >= 0
    if not compiled:
        _library = ctypes.CDLL(path)
        return sys.modules.get(__name__)
    loader = importlib.machinery.ExtensionFileLoader("cuda_extension", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location("cuda_extension", path, loader=loader))
    loader.exec_module(module)
    sys.modules["cuda_extension"] = module
    return module


def _loaded():
    if _library is None:
        path = os.environ.get("CALAB_LIBRARY") or _default
        if not os.path.exists(path):
            raise RuntimeError("cuda_extension: nothing is built yet; run `bash utils/compile.sh` first")
        load(path)
    return _library


def parse(prototype):
    """C prototype -> (return type, name, [(is_const, C type, is_pointer, parameter name), ...]); ValueError says what is wrong."""
    match = PROTOTYPE.fullmatch(prototype)
    if not match:
        raise ValueError(f"declare: {prototype!r} is not a prototype of the form 'void name(type a, type b)' (return type void or int)")
    returns, name, text = match.groups()
    parameters = []
    for part in ([] if text.strip() in ("", "void") else text.split(",")):
        found = PARAMETER.fullmatch(part.strip())
        if not found:
            raise ValueError(f"declare: cannot read the parameter {part.strip()!r} of {name}; write it as 'const float* x' or 'int64_t n'")
        const, ctype, east, star, label = found.groups()
        ctype = " ".join(ctype.split())
        if ctype != "cudaStream_t" and ctype not in (POINTEES if star else {**INTEGERS, **FLOATS, "bool": 0}):
            raise ValueError(f"declare: {name} has a parameter of type '{ctype}{star or ''}', which is not supported; "
                             f"use {'void*' if star else 'int, int64_t, float, double or bool'}")
        parameters.append((bool(const or east), ctype, bool(star), label))
    return returns, name, parameters


def _pointer(function, label, ctype):
    """The converter of one pointer argument: tensor -> (address, device index, -1 for the CPU)."""
    fits, Tensor = POINTEES[ctype], torch.Tensor
    def convert(t):
        if t is None:
            return None, None                      # NULL, for an optional tensor
        if not isinstance(t, Tensor):
            raise TypeError(f"{function}: {label} must be a tensor (or None), not {type(t).__name__}")
        if fits is not None and t.dtype not in fits:
            raise TypeError(f"{function}: {label} is declared {ctype}*, but the tensor is {t.dtype}")
        if not t.is_contiguous():
            raise TypeError(f"{function}: {label} is not contiguous (shape {tuple(t.shape)}, strides {t.stride()}); call .contiguous() first")
        address = t.data_ptr()
        if not address and t.numel():
            raise TypeError(f"{function}: {label} has no memory (device {t.device}); pass a tensor on the CPU or a GPU")
        return address, t.get_device()
    return convert


def _scalar(function, label, ctype):
    """The converter of one scalar argument; ctypes alone would cut an integer that is too large without a word."""
    if ctype in FLOATS:
        def convert(v):
            if type(v) is float or (isinstance(v, (int, float)) and not isinstance(v, bool)):
                return v
            raise TypeError(f"{function}: {label} is declared {ctype}, but got {type(v).__name__}; pass a Python number")
    elif ctype == "bool":
        def convert(v):
            if v is True or v is False:
                return v
            raise TypeError(f"{function}: {label} is declared bool, but got {type(v).__name__}; pass True or False")
    else:
        _, low, high = INTEGERS[ctype]
        def convert(v):
            if isinstance(v, int) and low <= v <= high:
                return v
            raise TypeError(f"{function}: {label} is declared {ctype}, but got {v if isinstance(v, int) else type(v).__name__}"
                            + ("; it does not fit" if isinstance(v, int) else "; pass a Python int"))
    return convert


def _current_stream(device):
    """Address of torch's current stream on this device; refuses a device that is not the current one."""
    if torch.cuda.current_device() != device:
        raise TypeError(f"the tensors are on cuda:{device}, but the current device is cuda:{torch.cuda.current_device()}; use torch.cuda.device")
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)    # 0.1 us instead of 2
    return raw(device) if raw else torch.cuda.current_stream(device).cuda_stream


def declare(prototype):
    """Callable for one `extern "C"` function of the library, from its prototype (one line of C).

    Pointer parameters take contiguous tensors of the matching dtype (None gives NULL); those without const are outputs.
    Scalars take Python numbers.  A last parameter `cudaStream_t stream` (or `void* stream`) is not an argument in Python:
    it gets the current stream on CUDA, NULL on the CPU.  All tensors must be on one device.  The callable returns None;
    a function that returns int reports an error by a value other than 0, which raises RuntimeError."""
    returns, name, parameters = parse(prototype)
    stream = bool(parameters) and (parameters[-1][1] == "cudaStream_t" or (parameters[-1][1:] == ("void", True, "stream")))
    given = parameters[:-1] if stream else parameters
    if any(p[1] == "cudaStream_t" for p in given):
        raise ValueError(f"declare: in {name} the cudaStream_t must be the last parameter")
    pointers = [(i, _pointer(name, label, ctype)) for i, (_, ctype, star, label) in enumerate(given) if star]
    scalars = [(i, _scalar(name, label, ctype)) for i, (_, ctype, star, label) in enumerate(given) if not star]
    types = [ctypes.c_void_p if star else FLOATS.get(ctype) or (ctypes.c_bool if ctype == "bool" else INTEGERS[ctype][0])
             for _, ctype, star, _ in given] + [ctypes.c_void_p] * stream
    signature = f"{name}({', '.join(p[3] for p in given)})"
    count, function, last_error = len(given), None, None

    def bind():
        nonlocal function, last_error
        library = _loaded()
        if library is None:
            raise RuntimeError("cuda_extension: the library is a compiled Python module (pybind ABI); call its functions directly")
        try:
            function = getattr(library, name)
        except AttributeError:
            raise RuntimeError(f'cuda_extension: the library has no function {name}; define it as extern "C" in kernels/') from None
        function.argtypes, function.restype = types, (ctypes.c_int if returns == "int" else None)
        last_error = getattr(library, "calab_last_error", None)   # cuda builds: the runtime's last launch error
        if last_error is not None:
            last_error.restype = ctypes.c_char_p

    def call(*args):
        if len(args) != count:
            raise TypeError(f"{signature} takes {count} arguments, but {len(args)} were given")
        values, device = list(args), None
        for i, convert in pointers:
            values[i], at = convert(args[i])
            if at != device and at is not None:
                if device is not None:
                    raise TypeError(f"{name}: the tensors are on different devices")
                device = at
        for i, convert in scalars:
            values[i] = convert(args[i])
        on_gpu = device is not None and device >= 0
        if stream:
            values.append(_current_stream(device) if on_gpu else None)
        if function is None:
            bind()
        code = function(*values)
        if code:
            raise RuntimeError(f"{name} returned error code {code}")
        if on_gpu and last_error is not None:
            error = last_error()
            if error:
                raise RuntimeError(f"{name}: the kernel was not launched: {error.decode()}")

    call.__name__, call.__doc__ = name, prototype.strip()
    return call


def _is_compiled_default():
    path = os.environ.get("CALAB_LIBRARY") or _default
    if not os.path.exists(path):
        return False
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as image:
        return image.find(b"PyInit_cuda_extension") >= 0


# `import cuda_extension` in a workspace whose library is a compiled module must give that module.
if _is_compiled_default():
    load(os.environ.get("CALAB_LIBRARY") or _default)
