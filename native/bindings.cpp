// The one extension module of weft: each part of the core binds itself.
#include <nanobind/nanobind.h>

void bind_enums(nanobind::module_& module);
void bind_simulation(nanobind::module_& module);
void bind_runtime(nanobind::module_& module);
void bind_codecs(nanobind::module_& module);
void bind_trace(nanobind::module_& module);
void bind_embedding(nanobind::module_& module);
void bind_signal_pad(nanobind::module_& module);

NB_MODULE(_core, module) {
  module.doc() = "The native core of weft.";
  module.def("version", [] { return WEFT_VERSION; }, "The version of weft this core was built for.");
  bind_enums(module);
  bind_simulation(module);
  bind_runtime(module);
  bind_codecs(module);
  bind_trace(module);
  bind_embedding(module);
  bind_signal_pad(module);
}
