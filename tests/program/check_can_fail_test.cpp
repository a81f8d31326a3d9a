// A comparison that cannot fail proves nothing: every compared tensor of every op is changed by a little more than its
// rule allows, and the case must fail by that very rule.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "check/check_file.hpp"
#include "support/changed_golden.hpp"

namespace megamla::check {
namespace {

using test::EditableGolden;
using test::EditableTensor;
using Change = void (*)(EditableTensor&);

void flip_first(EditableTensor& t) { t.bytes.front() ^= 1; }
void flip_last_element(EditableTensor& t) { t.bytes[t.bytes.size() - t.bytes.size() / t.count()] ^= 1; }
void flip_every_element(EditableTensor& t) {
  for (size_t i = 0; i < t.bytes.size(); i += t.bytes.size() / t.count()) t.bytes[i] ^= 1;
}
void two_exponents(EditableTensor& t) { t.bytes.front() ^= 2; }
template <int kPerMillion>
void scale_f64(EditableTensor& t) {
  for (size_t i = 0; i < t.count(); ++i) t.at<double>(i) *= 1 + kPerMillion * 1e-6;
}
template <int kPerMillion>
void shift_f64(EditableTensor& t) {
  for (size_t i = 0; i < t.count(); ++i) t.at<double>(i) += kPerMillion * 1e-6;
}
// Adds to the first element alone, of a tensor whose first row is a live one.
void shift_first_f64(EditableTensor& t) { t.at<double>(0) += 0.25; }
void first_becomes_infinite(EditableTensor& t) { t.at<double>(0) = std::numeric_limits<double>::infinity(); }
void first_becomes_nan(EditableTensor& t) { t.at<double>(0) = std::nan(""); }
// Of (step, slot, token) rows.
void another_token(EditableTensor& t) { t.at<int64_t>(2) += t.at<int64_t>(2) == 0 ? 1 : -1; }
// Rows of 512 values, as heads are.
void swap_first_two_heads(EditableTensor& t) {
  const auto row = static_cast<std::ptrdiff_t>(512 * t.bytes.size() / t.count());
  std::swap_ranges(t.bytes.begin(), t.bytes.begin() + row, t.bytes.begin() + row);
}
// The first rows of all heads become zero: a live row is not a zero row.
void first_head_zero(EditableTensor& t) { std::fill_n(t.bytes.begin(), 512 * sizeof(double), uint8_t{0}); }

struct Planted {
  const char* golden;
  const char* tensor;
  Change change;
  const char* rule;  // that the failure begins with
};

constexpr Planted kPlanted[] = {
    {"cast__amax_edges", "out.fp8", flip_first, "out.fp8"},
    {"cast__amax_edges", "out.fp8", flip_last_element, "out.fp8"},
    {"cast__amax_edges", "out.sf", flip_first, "out.sf"},
    {"cast__z_amax_edges", "out.data", flip_last_element, "out.data"},
    {"cast__z_amax_edges", "out.scale", flip_first, "out.scale"},
    {"mxfp8_quant__t6_k160_tiny", "out.data", flip_first, "out.data"},
    {"mxfp8_quant__t6_k160_tiny", "out.scale", flip_first, "out.scale"},
    {"combine_topk_swa__gather_start", "out.indices", flip_last_element, "out.indices"},
    {"combine_topk_swa__gather_start", "out.lens", flip_first, "out.lens"},
    {"compress__ratio1", "out.latent_f64", scale_f64<15000>, "latent"},
    {"compress__ratio1", "out.written", flip_first, "out.written"},
    {"compress__ratio2_steps", "out.latent_f64", scale_f64<15000>, "latent"},
    {"compress__ratio2_steps", "out.state_rows", another_token, "state"},
    {"compressed_slot_mapping__states64", "out.slot_mapping", flip_first, "out.slot_mapping"},
    {"decode__h8_s3_584_only_p53", "out.o_f64", swap_first_two_heads, "fp8 element"},
    {"decode__h8_s3_584_only_p53", "out.o_f64", shift_first_f64, "fp8 element"},
    {"decode__h8_s3_584_only_p53", "out.o_f64", scale_f64<60000>, "fp8"},
    {"decode__h8_s3_584_only_p53", "out.o_f64", scale_f64<8000>, "bf16 cosine"},
    {"decode__h8_s3_584_only_p53", "out.o_f64", first_head_zero, "fp8 element"},
    {"decode__h8_s3_584_only_p53", "out.lse_f64", shift_f64<700>, "lse"},
    {"decode__h8_s3_584_only_p53", "out.lse_f64", first_becomes_infinite, "lse"},
    {"decode__h8_s3_584_only_p53", "out.lse_f64", first_becomes_nan, "lse"},
    {"decode__h8_s3_584_only_p53", "out.sf", two_exponents, "fp8 scale byte"},
    {"decode__h8_s3_584_only_p53", "in.q", swap_first_two_heads, "lse"},
    {"decode_slice__h8_s3_of_10", "out.o_f64", swap_first_two_heads, "fp8 element"},
    {"decode_slice__h8_s3_of_10", "out.lse_f64", shift_f64<700>, "lse"},
    {"gather__fp8_528_interleaved", "out.workspace", flip_first, "out.workspace"},
    {"gather__fp8_528_interleaved", "out.workspace", flip_last_element, "out.workspace"},
    {"global_topk__k64_bs128", "out.indices", flip_every_element, "out.indices"},
    {"global_topk__k64_bs128", "out.lens", flip_every_element, "out.lens"},
    {"kv_decode__fp8_584_all", "out.x", flip_last_element, "bits"},
    {"kv_decode__nvfp4_288_nonfinite", "out.x", flip_every_element, "bits"},
    {"kv_encode__nvfp4_288_corners", "out.data", flip_first, "data"},
    {"kv_encode__nvfp4_288_corners", "out.scale", flip_last_element, "scale"},
    {"kv_insert__swa528_interleaved_p16", "out.cache", flip_first, "bytes"},
    {"kv_insert__swa528_interleaved_p16", "out.cache", flip_last_element, "bytes"},
    {"kv_insert__compfp4_r2_interleaved_p32", "out.cache", flip_last_element, "bytes"},
    {"o_proj__t1_g2_d64", "out.z_f64", scale_f64<15000>, "z"},
    {"o_proj__t1_g2_d64", "out.z_scale", two_exponents, "z fp8 exponent"},
    {"o_proj__t1_g2_d64", "out.y_f64", scale_f64<15000>, "y"},
    {"o_proj__t1_g2_d64", "in.wo_a_ckpt", flip_first, "in.wo_a"},
    {"pad_q__h8_to_16", "out.q", flip_last_element, "out.q"},
    {"permute_o__g1", "out.x", flip_first, "out.x"},
    {"permute_o__g1", "out.chunk", flip_first, "out.chunk"},
    {"permute_q__h8", "out.q", flip_last_element, "out.q"},
    {"permute_wo_a__g2_d32", "out.weight", flip_first, "out.weight"},
    {"permute_wo_a__g2_d32", "out.scale_plain", flip_first, "out.scale_plain"},
    {"permute_wo_a__g2_d32", "out.scale_packed", flip_last_element, "out.scale_packed"},
    {"permute_wq_b__h8_r64", "out.weight", flip_last_element, "out.weight"},
    {"permute_wq_b__h8_r64", "out.scale_plain", flip_last_element, "out.scale_plain"},
    {"permute_wq_b__h8_r64", "out.scale_packed", flip_first, "out.scale_packed"},
    {"prefill__h8_s2_k128_qnorm", "out.o_f64", swap_first_two_heads, "fp8 element"},
    {"prefill__h8_s2_k128_qnorm", "out.lse_f64", shift_f64<700>, "lse"},
    {"prefill__h8_s2_k128_qnorm", "out.max_logits_f64", shift_f64<700>, "max_logits"},
    {"prefill_chunk_plan__tight", "out.plan", flip_last_element, "out.plan"},
    {"rope_tables__theta160000_yarn16", "out.cos_sin_f64", shift_f64<1>, "table"},
    {"rope_tables__theta160000_yarn16", "out.inv_freq_f64", scale_f64<1>, "inv_freq"},
    {"split_batch__edges", "out.split", flip_last_element, "out.split"},
    {"swa_metadata__mixed", "out.is_valid_token", flip_first, "out.is_valid_token"},
    {"swa_metadata__mixed", "out.token_to_req", flip_first, "out.token_to_req"},
    {"swa_metadata__mixed", "out.decode_swa_indices", flip_last_element, "out.decode_swa_indices"},
    {"swa_metadata__mixed", "out.decode_swa_lens", flip_first, "out.decode_swa_lens"},
    {"swa_metadata__mixed", "out.prefill_gather_lens", flip_first, "out.prefill_gather_lens"},
};

std::string shipped(const std::string& name) { return MEGAMLA_SOURCE_DIR "/tests/golden/" + name + ".safetensors"; }

megamla_exec on(megamla_device device) {
  megamla_exec exec = MEGAMLA_EXEC_INIT;
  exec.device = device;
  return exec;
}

TEST(CheckCanFail, EveryPlantedErrorIsFoundByItsRule) {
  for (const Planted& planted : kPlanted) {
    SCOPED_TRACE(std::string(planted.golden) + " " + planted.tensor);
    EditableGolden golden(shipped(planted.golden));
    ASSERT_EQ(golden.tensors.count(planted.tensor), 1U);
    planted.change(golden.tensors.at(planted.tensor));
    const Report report = check_file(golden.write(), on(MEGAMLA_DEVICE_CPU));
    EXPECT_FALSE(report.verdict.passed());
    EXPECT_EQ(report.verdict.failure().rfind(planted.rule, 0), 0U) << report.verdict.failure();
  }
}

// The same files, unchanged, hold: what failed above is the change.
TEST(CheckCanFail, UnchangedCopiesHold) {
  for (const Planted& planted : kPlanted) {
    const Report report = check_file(EditableGolden(shipped(planted.golden)).write(), on(MEGAMLA_DEVICE_CPU));
    EXPECT_TRUE(report.verdict.passed()) << planted.golden << ": " << report.verdict.failure();
  }
}

TEST(CheckCanFail, EveryOpHasAPlantedError) {
  for (const std::string& op : known_ops()) {
    if (op == "layer") continue;
    const bool there = std::any_of(std::begin(kPlanted), std::end(kPlanted),
                                   [&](const Planted& p) { return std::string(p.golden).rfind(op + "__", 0) == 0; });
    EXPECT_TRUE(there) << op;
  }
}

TEST(CheckCanFail, UnknownOpIsAFailure) {
  EditableGolden golden(shipped("split_batch__edges"));
  golden.metadata["op"] = "split_hairs";
  const Report report = check_file(golden.write(), on(MEGAMLA_DEVICE_CPU));
  EXPECT_FALSE(report.verdict.passed());
  EXPECT_NE(report.verdict.failure().find("expected an op that this program knows, found 'split_hairs'"),
            std::string::npos)
      << report.verdict.failure();
}

}  // namespace
}  // namespace megamla::check
