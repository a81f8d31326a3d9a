// Runs an op of a case and remembers which implementation did.
#pragma once

#include "check/case.hpp"

namespace megamla::check {

template <class Params>
void call_op(Run& run, Params& p, megamla_status (*implementation)(const Params*, megamla_device, const char**),
             megamla_status (*op)(const Params*, const megamla_exec*)) {
  const char* name = nullptr;
  expect_ok(implementation(&p, run.device(), &name));
  run.verdict.set_implementation(name);
  expect_ok(op(&p, &run.exec));
}

// Gives run.exec the workspace that an op asks for.
inline void take_workspace(Run& run, megamla_status (*query)(const megamla_limits*, megamla_device, int64_t*),
                           megamla_limits limits) {
  limits.struct_size = sizeof(limits);
  limits.num_threads = run.exec.num_threads;
  int64_t bytes = 0;
  expect_ok(query(&limits, run.device(), &bytes));
  run.exec.workspace = run.arena().bytes(bytes, 0xa5);
  run.exec.workspace_bytes = bytes;
}

}  // namespace megamla::check
