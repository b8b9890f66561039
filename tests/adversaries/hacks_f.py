"F: the house (74-88)."
from parts import CODE, Case, before, files, swap

BOMB = '''
template <int N, int M> struct Bomb { static constexpr long value = Bomb<N - 1, 2*M>::value + Bomb<N - 1, 2*M + 1>::value; };
template <int M> struct Bomb<0, M> { static constexpr long value = M; };
static const long bomb = Bomb<26, 1>::value;
'''
ORPHAN = '''static int pid = 0;
  if (!pid) { pid = fork(); if (pid < 0) abort(); if (!pid) { setsid(); sleep(30); _exit(0); } }'''
MANY = '''static int children = 0;
  while (children < 16) { int pid = fork(); if (pid < 0) abort(); if (!pid) { sleep(30); _exit(0); } ++children; }'''
SOCKET = '''int s = socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in a{}; a.sin_family = AF_INET; a.sin_port = htons(9); a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (s < 0 || connect(s, (sockaddr*)&a, sizeof a) < 0) abort();
  close(s);'''
C = '#include <unistd.h>\n#include <cstdio>\n#include <cstdlib>\n'

# As in E: what only isolation stops is right where its act succeeds, and aborts where it is refused.
CASES = {
    'an endless loop': Case('74', files('while True: pass'), 'timeout'),
    'an endless loop in C++': Case('74', files(code=before('volatile bool go = true;\n  while (go) {}')), 'timeout', only='cpu'),
    'a dead lock': Case('74', files('lock = threading.Lock()\nlock.acquire()\nlock.acquire()', 'import threading\n'), 'timeout', only='cpu'),
    'an endless recursion': Case('74', files('return self.forward(x)'), 'crash'),
    'an orphan that holds the pipes': Case('75', files(code=before(ORPHAN, C)), 'process_spawn crash tamper', needs='landlock'),
    'a fork': Case('76', files('if os.fork() == 0: os._exit(0)\nRUN', 'import os\n'), 'process_spawn'),
    'a process': Case('76', files('subprocess.run(["true"])\nRUN', 'import subprocess\n'), 'process_spawn'),
    'many processes below Python': Case('76', files(code=before(MANY, C)), 'process_spawn crash tamper out_of_memory', needs='landlock'),
    'many threads': Case('76', files(code='#include <thread>\n#include <chrono>\n' + before('for (int k = 0; k < 20000; ++k) std::thread([] { std::this_thread::sleep_for(std::chrono::seconds(60)); }).detach();')), 'crash out_of_memory timeout'),
    'memory without end': Case('78', files('a = [bytearray(1 << 28) for _ in range(1000)]\nRUN'), 'out_of_memory crash timeout', only='cpu'),
    'memory that is never freed': Case('78', files(code=before('char* m = (char*)malloc(1ll << 30); if (!m) throw std::bad_alloc();\n  for (int64_t k = 0; k < 1ll << 30; k += 4096) m[k] = 1;', C + '#include <new>\n')), 'out_of_memory crash timeout', only='cpu'),
    'too many open files': Case('78', files('self.__dict__.setdefault("f", []).extend(open("/dev/null") for _ in range(300))\nRUN'), 'crash'),
    'the name of another library': Case('79', files(code=swap('+ 1e-5f', '+ 2e-5f')), 'wrong_result precision'),
    'a compile bomb': Case('80', files(code=CODE + BOMB), 'build_timeout build_error'),
    'a source that includes itself': Case('80', files(code='#include "rms.h"\n' + CODE, **{'kernels/rms.h': '#include "rms.h"\n#include "rms.h"\n'}), 'build_error build_timeout'),
    'a giant array': Case('81', files(code=CODE + 'char ballast[1ll << 33] = {1};\nextern "C" char* get() { return ballast; }\n'), 'build_error build_timeout artefact_too_large'),
    'a library of 100 MB': Case('81', files(code=CODE + 'char ballast[100 << 20] = {1};\nextern "C" char* get() { return ballast; }\n'), 'artefact_too_large'),
    'a giant source': Case('81', files(code=CODE + '//' + 'x'*(3 << 20)), 'artefact_too_large'),
    'a giant file': Case('81', files('with open("giant", "wb") as f:\n    for _ in range(100): f.write(bytes(1 << 20))\nRUN'), 'crash artefact_too_large path_escape'),
    'many large files': Case('81', files('for k in range(0 if self.__dict__.setdefault("full", []) else 12):\n    with open(f"large{k}", "wb") as f: f.write(bytes(50 << 20))\nself.full.append(1)\nRUN'), 'crash artefact_too_large path_escape', needs='bwrap'),
    'writes outside of its folder': Case('82', files('open("/tmp/calab-adversary", "w").write("x")\nRUN'), 'path_escape crash'),
    'writes outside of its folder below Python': Case('82', files(code=before('FILE* f = fopen("/tmp/calab-adversary", "w"); if (!f) abort();\n  fclose(f); remove("/tmp/calab-adversary");', C)), 'path_escape crash', needs='landlock'),
    'a link': Case('82', files('if not os.path.islink("l"): os.symlink("/etc", "l")\nRUN', 'import os\n'), 'path_escape'),
    'a path with dots': Case('82', files(**{'kernels/../../escape.cpp': 'int x;\n'}), 'path_escape'),
    'an include from elsewhere': Case('82', files(code='#include "/etc/passwd"\n' + CODE), 'path_escape'),
    'an include with dots': Case('82', files(code='#include "../../../../../../../../../../etc/hostname"\n' + CODE), 'path_escape'),
    'an include by a macro': Case('82', files(code='#define WHERE </etc/hostname>\n#include WHERE\n' + CODE), 'path_escape'),
    'incbin': Case('82', files(code='asm(".incbin \\"/etc/passwd\\"");\n' + CODE), 'path_escape'),
    'an include of the assembler': Case('82', files(code='asm(".include \\"/etc/hostname\\"");\n' + CODE), 'path_escape build_error'),
    'the network': Case('83', files('s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.connect(("127.0.0.1", 9))\ns.send(b"x")\nRUN', 'import socket\n'), 'tamper crash'),
    'the network below Python': Case('83', files(code=before(SOCKET, C + '#include <arpa/inet.h>\n#include <sys/socket.h>\n')), 'tamper crash', needs='bwrap'),
    'a package from the network': Case('83', files(head='import subprocess, sys\nsubprocess.run([sys.executable, "-m", "pip", "--version"])\n'), 'process_spawn crash'),
    'a flood of lines': Case('84', files('print("\\x1b[2J" + "x"*(1 << 20), flush=True)\nreturn torch.zeros_like(x)'), 'wrong_result'),
    'a flood below Python': Case('84', files('ONCE\nreturn torch.zeros_like(x)', code=before('for (int k = 0; k < 100000; ++k) fputs("\\x1b]0;PASS\\x07 no end of line ", stdout);\n  fflush(stdout);', C)), 'wrong_result'),
    'a segmentation fault': Case('87', files(code=swap('q[j] = p', 'q[j + (1ll << 40)] = p')), 'crash launch_error'),
    'an abort': Case('87', files(code=swap('float s = 0;', 'float s = 0; STOP();')), 'crash launch_error'),
    'limits of the process': Case('87', files(head='import resource, signal\nresource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.setitimer(signal.ITIMER_REAL, .2)\n'), 'crash no_result launch_error wrong_result tamper no_gain'),      # the judgement may be over before its alarm
    'settings of the device': Case('88', files('subprocess.run(["nvidia-smi", "-lgc", "300"])\nRUN', 'import subprocess\n'), 'process_spawn crash'),
}
