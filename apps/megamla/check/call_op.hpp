// Runs an op of a case where its device is, and remembers which implementation did.
#pragma once

#include "check/case.hpp"
#include "megamla/megamla.hpp"
#include "op_views.hpp"

namespace megamla::check {

inline void expect_ok(const api::Result& result) {
  if (!result) throw CaseError(result.message());
}

template <class Params>
void call_op(Run& run, const Params& p) {
  const char* name = nullptr;
  expect_ok(api::implementation(p, run.device(), &name));
  run.verdict.used(name);
  const Params call = app::placed(p, run.arena());
  const megamla_exec exec = app::placed(run.exec, run.arena());
  run.arena().upload();
  expect_ok(api::run(call, exec));
  run.arena().download();
}

// Gives run.exec exactly the workspace that an op asks for.
template <class Params>
void take_workspace(Run& run, megamla_limits limits) {
  limits.num_threads = run.exec.num_threads;
  int64_t bytes = 0;
  expect_ok(api::workspace_size<Params>(limits, run.device(), &bytes));
  run.exec.workspace = run.arena().bytes(bytes, kUnwritten);
  run.exec.workspace_bytes = bytes;
}

}  // namespace megamla::check
