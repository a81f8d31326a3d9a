// An op's parameters, moved to where the device reads them.
#pragma once

#include "arena.hpp"
#include "ops/views.hpp"

namespace megamla::app {

// The call with its views where the device reads them: on a GPU, their twins.
template <class Params>
Params placed(Params params, Arena& arena) {
  ops::for_each_view(params, [&](auto& view) { arena.place(view); });
  return params;
}
inline megamla_exec placed(megamla_exec exec, Arena& arena) {
  exec.workspace = arena.on_device(exec.workspace);
  return exec;
}

}  // namespace megamla::app
