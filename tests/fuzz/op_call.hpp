// One call of an op, as the fuzzer wants it: parameters that the op accepts, perhaps spoilt; then the contract that
// holds for every op and whatever the parameters are.
//
//  - Nothing but memory of the call is touched (guarded memory, sanitizers), and of the struct only what its size says.
//  - A refused call writes nothing; an accepted one nothing but elements of its outputs.
//  - `supports` and the call itself agree.
//  - A refusal names the op.
//  - The CPU's bytes do not depend on the number of threads, and match the reference as the target's comparison asks:
//    those of the implementation that the dispatcher takes, and those of another one on another instruction set.
#pragma once

#include <functional>
#include <vector>

#include "fuzz/finding.hpp"
#include "fuzz/snapshot.hpp"
#include "fuzz/spoil.hpp"
#include "fuzz/tensors.hpp"
#include "megamla/megamla.hpp"
#include "ops/op.hpp"
#include "support/simd_targets.hpp"

namespace megamla::fuzz {

inline const char* name_of(megamla_device device) { return device == MEGAMLA_DEVICE_CPU ? "cpu" : "reference"; }

template <class Params>
class OpCall {
 public:
  // Judges the two implementations' outputs of a call that is not spoilt; throws Finding. Without it: equal bytes.
  using Compare = std::function<void(const Params&, const Snapshot& reference, const Snapshot& cpu)>;

  OpCall(const char* op, Choices& choices) : views(choices), op_(op), c_(choices) {}

  Params params;
  Views views;

  // Every tensor and cache of `params`, present or not.
  void inputs(std::initializer_list<megamla_tensor*> tensors) { tensors_.insert(tensors_.end(), tensors); }
  void outputs(std::initializer_list<megamla_tensor*> tensors) {
    inputs(tensors);
    outputs_.insert(outputs_.end(), tensors);
  }
  void input(megamla_kv_cache* cache) { caches_.push_back(cache); }
  void output(megamla_kv_cache* cache) {
    input(cache);
    output_caches_.push_back(cache);
  }
  // The limits that a call with such parameters needs; an op without a workspace needs none.
  void limits(std::function<megamla_limits(const Params&)> of) { limits_of_ = std::move(of); }

  void run(const Compare& compare = {}) {
    const uint8_t plan = c_.byte();
    const bool spoilt = plan >= 160;
    if (spoilt) spoil(c_, params, tensors_);
    if (plan >= 240) spoil(c_, params, tensors_);
    store_struct();
    ask_for_workspace_sizes();
    const Answer reference = answer(MEGAMLA_DEVICE_REFERENCE);
    const Answer cpu = answer(MEGAMLA_DEVICE_CPU);
    require(reference.status == cpu.status, "{}: reference says '{}', cpu says '{}'", op_, reference.message,
            cpu.message);
    if (reference.status != MEGAMLA_OK) return check_refusal(reference.status);
    require(spoilt || is_backed_call(), "{}: the harness has drawn a view without memory", op_);
    if (!is_backed_call()) return;
    require(outputs_are_apart(), "{}: accepted with an output that shares memory", op_);
    if (c_.rarely()) check_odd_exec();
    check_results(compare, spoilt);
  }

 private:
  using Flags = std::vector<std::vector<uint8_t>>;
  struct Answer {
    megamla_status status;
    std::string message;
  };

  // --- the struct ---

  // The struct in memory of its own, as long as it says; what `params` holds from here on is what the library sees.
  void store_struct() {
    const size_t size = params.struct_size;
    const bool readable = size >= 2 * sizeof(size_t) && size <= 65536;
    const size_t there = readable ? size : sizeof(size_t);
    const Block block = GuardedMemory::instance().take(static_cast<int64_t>(there), alignof(Params), 0);
    stored_ = reinterpret_cast<const Params*>(block.begin);
    std::memcpy(block.begin, &params, std::min(there, sizeof(Params)));
    if (there > sizeof(Params) && c_.rarely()) block.begin[there - 1] = 1;  // a field of the future
    if (there < sizeof(Params)) {
      std::memset(reinterpret_cast<char*>(&params) + there, 0, sizeof(Params) - there);
    }
  }

  bool is_backed_call() const {
    return std::all_of(tensors_.begin(), tensors_.end(), [](const auto* t) { return is_backed(*t); }) &&
           std::all_of(caches_.begin(), caches_.end(), [](const auto* c) { return is_backed(*c); });
  }

  bool outputs_are_apart() const {
    for (const megamla_tensor* t : tensors_) {
      for (const megamla_tensor* out : outputs_) {
        if (t != out && share_memory(*t, *out)) return false;
      }
      for (const megamla_kv_cache* cache : output_caches_) {
        if (share_memory(*t, *cache)) return false;
      }
    }
    return true;
  }

  // --- calls ---

  Answer answer(megamla_device device) {
    const Snapshot before;
    const api::Result result = api::supports(*stored_, device);
    expect_unchanged(before, op_, "supports");
    if (result.ok()) return {MEGAMLA_OK, "ok"};
    const std::string& message = result.message();
    require(message.rfind(std::string(op_) + ": ", 0) == 0, "{}: refused with '{}'", op_, message);
    require(!message.empty() && message.find('\n') == std::string::npos, "{}: refused with the message '{}'", op_,
            message);
    return {result.code(), message};
  }

  // Sizes for any limits: an answer or a refusal, never a negative size.
  void ask_for_workspace_sizes() {
    megamla_limits any = limits_of(params, static_cast<int>(c_.in(0, 8)));
    for (int64_t i = c_.rarely() ? c_.in(1, 4) : 0; i > 0; --i) {
      reinterpret_cast<int64_t*>(&any)[c_.in(1, sizeof(any) / sizeof(int64_t) - 1)] = c_.number();
    }
    for (const megamla_device device : {MEGAMLA_DEVICE_REFERENCE, MEGAMLA_DEVICE_CPU}) {
      int64_t bytes = 0;
      if (api::workspace_size<Params>(any, device, &bytes).ok()) {
        require(bytes >= 0, "{}: a workspace of {} bytes", op_, bytes);
      }
    }
  }

  megamla_limits limits_of(const Params& p, int threads) const {
    megamla_limits limits = limits_of_ ? limits_of_(p) : megamla_limits{};
    limits.struct_size = sizeof(limits);
    limits.num_threads = threads;
    return limits;
  }

  megamla_exec make_exec(megamla_device device, int threads) const {
    megamla_exec exec = MEGAMLA_EXEC_INIT;
    exec.device = device;
    exec.num_threads = threads;
    const api::Result size = api::workspace_size<Params>(limits_of(params, threads), device, &exec.workspace_bytes);
    require(size.ok(), "{}: no workspace size for a valid call: {}", op_, size.message());
    return exec;
  }

  void check_refusal(megamla_status status) {
    for (const megamla_device device : {MEGAMLA_DEVICE_REFERENCE, MEGAMLA_DEVICE_CPU}) {
      const Snapshot before;
      megamla_exec exec = MEGAMLA_EXEC_INIT;
      exec.device = device;
      const api::Result result = api::run(*stored_, exec);
      require(result.code() == status, "{} on {}: supports refuses, the call says: {}", op_, name_of(device),
              result.message());
      expect_unchanged(before, op_);
    }
  }

  // What an accepted call may write: a flag per byte of every block.
  Flags writable() const {
    Flags flags;
    const GuardedMemory& memory = GuardedMemory::instance();
    for (int64_t i = 0; i < memory.count(); ++i) flags.emplace_back(static_cast<size_t>(memory.block(i).bytes));
    const auto mark = [&](const uint8_t* begin, int64_t bytes) {
      for (int64_t i = 0; i < memory.count(); ++i) {
        const int64_t at = begin - memory.block(i).begin;
        if (at < 0 || at + bytes > memory.block(i).bytes) continue;
        std::fill_n(flags[static_cast<size_t>(i)].begin() + at, bytes, uint8_t{1});
      }
    };
    for (const megamla_tensor* t : outputs_) for_each_element(*t, mark);
    for (const megamla_kv_cache* c : output_caches_) for_each_record(*c, mark);
    return flags;
  }

  // An exec that makes no sense: a refusal that writes nothing, or it made sense after all.
  void check_odd_exec() {
    const Snapshot before;
    megamla_exec exec = MEGAMLA_EXEC_INIT;
    exec.workspace_bytes = 256;
    exec.workspace = GuardedMemory::instance().take(exec.workspace_bytes, 256, kUnwritten).begin;
    exec.device = static_cast<int32_t>(c_.coin() ? int64_t{MEGAMLA_DEVICE_CPU} : c_.number());
    if (c_.coin()) exec.num_threads = static_cast<int32_t>(c_.number());
    if (c_.coin()) exec.workspace_bytes = std::min<int64_t>(c_.number(), 256);
    if (c_.coin()) exec.workspace = static_cast<char*>(exec.workspace) + c_.in(0, 255);
    if (c_.coin()) exec.struct_size = c_.one_of<size_t>({0, 8, 16, 20, 24, 40});
    if (!api::run(*stored_, exec).ok()) expect_unchanged(before, op_);
    before.restore();
  }

  // The blocks' bytes after a run; nothing but flagged ones have changed.
  Snapshot run_on(megamla_device device, int threads, const Snapshot& initial, const Flags& writable) {
    initial.restore();
    megamla_exec exec = make_exec(device, threads);
    back_workspace(exec);
    const api::Result result = api::run(*stored_, exec);
    require(result.ok(), "{} on {}: supports accepts, the call says: {}", op_, name_of(device), result.message());
    return results(name_of(device), initial, writable);
  }

  // Any implementation of the CPU that covers the call, on any instruction set that the library has vector code for.
  template <class P>
  Snapshot run_another(const ops::Op<P>& op, int threads, const Snapshot& initial, const Flags& writable) {
    initial.restore();
    std::vector<const ops::Implementation<P>*> covering;
    for (const auto& implementation : op.implementations) {
      if (implementation.device == MEGAMLA_DEVICE_CPU && implementation.supports(params).ok())
        covering.insert(covering.begin(), &implementation);
    }
    const ops::Implementation<P>& chosen = *covering[c_.byte() % covering.size()];
    megamla_exec exec = MEGAMLA_EXEC_INIT;
    exec.device = MEGAMLA_DEVICE_CPU;
    exec.num_threads = threads;
    exec.workspace_bytes = chosen.workspace_size(limits_of(params, threads));
    back_workspace(exec);
    const auto targets = hwy::SupportedAndGeneratedTargets();
    hwy::SetSupportedTargetsForTest(targets[targets.size() - 1 - c_.byte() % targets.size()]);
    const Status status = ops::run_implementation(op, chosen, static_cast<const P&>(params), exec);
    hwy::SetSupportedTargetsForTest(0);
    require(status.ok(), "{}: {} covers the call and says: {}", op_, chosen.name, status.message());
    return results(chosen.name, initial, writable);
  }

  void back_workspace(megamla_exec& exec) {
    if (exec.workspace_bytes == 0) return;
    exec.workspace = GuardedMemory::instance().take(exec.workspace_bytes, 256, kUnwritten).begin;
  }

  Snapshot results(const char* who, const Snapshot& initial, const Flags& writable) const {
    Snapshot after(static_cast<int64_t>(initial.blocks()));
    for (size_t i = 0; i < initial.blocks(); ++i) {
      if (after.block(i) == initial.block(i)) continue;
      for (size_t b = 0; b < writable[i].size(); ++b) {
        require(writable[i][b] != 0 || after.block(i)[b] == initial.block(i)[b],
                "{} on {}: byte {} of block {} is no output's and was written", op_, who, b, i);
      }
    }
    return after;
  }

  // Rounding is judged against bounds made for the values drawn: not where a spoilt call reads others.
  void check_results(const Compare& compare, bool spoilt) {
    const Snapshot initial;
    const auto flags = writable();
    const int threads = static_cast<int>(c_.in(1, 4));
    const int other_threads = static_cast<int>(c_.in(1, 4));
    const Snapshot reference = run_on(MEGAMLA_DEVICE_REFERENCE, 1, initial, flags);
    const Snapshot cpu = run_on(MEGAMLA_DEVICE_CPU, threads, initial, flags);
    const Snapshot again = run_on(MEGAMLA_DEVICE_CPU, other_threads, initial, flags);
    for (size_t i = 0; i < initial.blocks(); ++i) {
      require(cpu.block(i) == again.block(i), "{}: {} and {} threads give different bytes in block {}", op_, threads,
              other_threads, i);
    }
    const Snapshot another = run_another(ops::op_of(&params), threads, initial, flags);
    for (const Snapshot* outputs : {&cpu, &another}) {
      if (!compare) expect_equal(reference, *outputs);
      if (compare && !spoilt) compare(params, reference, *outputs);
    }
  }

  void expect_equal(const Snapshot& reference, const Snapshot& cpu) const {
    for (size_t i = 0; i < reference.blocks(); ++i) {
      for (size_t b = 0; b < cpu.block(i).size(); ++b) {
        require(cpu.block(i)[b] == reference.block(i)[b], "{}: byte {} of block {}: reference has {:#04x}, cpu {:#04x}",
                op_, b, i, reference.block(i)[b], cpu.block(i)[b]);
      }
    }
  }

  const char* op_;
  Choices& c_;
  std::vector<megamla_tensor*> tensors_, outputs_;
  std::vector<megamla_kv_cache*> caches_, output_caches_;
  std::function<megamla_limits(const Params&)> limits_of_;
  const Params* stored_ = nullptr;
};

}  // namespace megamla::fuzz
