// Lets every *_binding.cpp add its functions to the one Python module.  Fixed: it is put back before judging.
//
//     static void add_softmax(pybind11::module& m) { m.def("softmax", &softmax); }
//     REGISTER_BINDING(softmax, add_softmax);
//
// binding.cpp walks the list when Python imports the module.
#pragma once
#include <vector>

namespace pybind11 { class module_; }

namespace calab {

struct BindingEntry {
    const char* name;
    void (*add)(pybind11::module_&);
};

// Defined in binding.cpp; a function, so that it exists before the first static object registers itself.
std::vector<BindingEntry>& binding_entries();

struct BindingAdder {
    BindingAdder(const char* name, void (*add)(pybind11::module_&)) { binding_entries().push_back({name, add}); }
};

}  // namespace calab

#define REGISTER_BINDING(name, function) static ::calab::BindingAdder calab_adder_##name{#name, function}
