// cast, mxfp8_quant: the two FP8 casts alone, byte for byte.
#include "check/call_op.hpp"
#include "check/output_pair.hpp"
#include "check/runners.hpp"
#include "format/chunked.hpp"

namespace megamla::check {
namespace {

// Data, and the scale bytes that belong to a value; padding bytes are not compared.
void cast_mxfp8(Run& run, const megamla_tensor& in) {
  const int64_t rows = in.shape[0];
  const int64_t scales = in.shape[1] / 32;
  api::OutputCast p;
  p.target = MEGAMLA_CAST_MXFP8;
  p.in = in;
  p.out = run.arena().tensor(MEGAMLA_F8_E4M3, {rows, in.shape[1]}, kUnwritten);
  p.out_scale = run.arena().tensor(MEGAMLA_F8_E8M0, {format::f8_128x4_size(rows, scales)}, kUnwritten);
  call_op(run, p);
  compare_equal(run, "out.data", p.out);
  const megamla_tensor expected = run.golden.expected("out.scale", MEGAMLA_F8_E8M0, {p.out_scale.shape[0]});
  const megamla_tensor written = run.golden.expected("out.scale_written", MEGAMLA_U8, {p.out_scale.shape[0]});
  run.verdict.require("out.scale", true, "");
  for (int64_t i = 0; i < expected.shape[0]; ++i) {
    if (at<const uint8_t>(written, i) == 0) continue;
    const uint8_t got = at<const uint8_t>(p.out_scale, i);
    const uint8_t ref = at<const uint8_t>(expected, i);
    run.verdict.require("out.scale", got == ref,
                        [&] { return fmt::format("byte {}: expected {:#04x}, found {:#04x}", i, ref, got); });
  }
}

void cast_attention_output(Run& run) {
  constexpr auto kFillWord = static_cast<int32_t>(0xa5a5a5a5U);
  api::OutputCast p;
  p.target = MEGAMLA_CAST_ATTENTION_OUTPUT;
  p.in = run.golden.input("in.o", MEGAMLA_F32, {Case::kAny, Case::kAny, 512});
  const int64_t tokens = p.in.shape[0];
  const int64_t groups = p.in.shape[1] / format::kGroupHeads;
  const OutputPair pair = make_output_pair(run.arena(), tokens, groups, kUnwritten, kFillWord);
  p.out = pair.data;
  p.out_scale = pair.scale;
  call_op(run, p);
  compare_equal(run, "out.fp8", p.out);
  const megamla_tensor words = run.golden.expected("out.sf", MEGAMLA_I32, {groups, 32, format::round_up(tokens, 4)});
  const megamla_tensor expected = scale_view(words, tokens);
  run.verdict.require("out.sf", true, "");
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < groups * 32; ++i) {
      const int32_t got = at<const int32_t>(p.out_scale, t, i / 32, i % 32);
      const int32_t ref = at<const int32_t>(expected, t, i / 32, i % 32);
      run.verdict.require("out.sf", got == ref, [&] {
        return fmt::format("token {} group {} word {}: expected {:#010x}, found {:#010x}", t, i / 32, i % 32, ref, got);
      });
    }
  }
  require_untouched(run.verdict, "pad columns", pair, 0, tokens, groups, kUnwritten, kFillWord);
}

}  // namespace

void run_mxfp8_quant(Run& run) { cast_mxfp8(run, run.golden.input("in.x", MEGAMLA_BF16, {Case::kAny, Case::kAny})); }

void run_cast(Run& run) {
  const std::string& target = run.golden.text("target");
  if (target == "z") return cast_mxfp8(run, run.golden.input("in.z", MEGAMLA_F32, {Case::kAny, Case::kAny}));
  if (target != "attention_output") run.golden.refuse("metadata 'target'", "attention_output or z", target);
  cast_attention_output(run);
}

}  // namespace megamla::check
