// Files that are no golden case: cut short, tensors missing or of another form, absurd parameters. Each is a failure
// with one line, never a crash (the sanitizer build runs this too).
#include <gtest/gtest.h>

#include <fstream>

#include "check/check_file.hpp"
#include "support/changed_golden.hpp"
#include "text.hpp"

namespace megamla::check {
namespace {

using test::EditableGolden;

// The smallest shipped case of each op that has something to compare.
const char* const kCases[] = {"cast__amax_edges",
                              "combine_topk_swa__gather_start",
                              "compress__ratio1",
                              "compress__ratio2_steps",
                              "compressed_slot_mapping__negative_table",
                              "decode__h8_s3_584_only_p53",
                              "decode_slice__h8_s3_of_10",
                              "gather__fp8_528_interleaved",
                              "global_topk__negative_table",
                              "kv_decode__nvfp4_288_all",
                              "kv_encode__nvfp4_288_corners",
                              "kv_insert__swa528_interleaved_p16",
                              "mxfp8_quant__t1_k128",
                              "o_proj__t1_g2_d64",
                              "pad_q__h8_to_16",
                              "permute_o__g1",
                              "permute_q__h8",
                              "permute_wo_a__g2_d32",
                              "prefill__h8_s2_k128_qnorm",
                              "prefill_chunk_plan__tight",
                              "rope_tables__t0",
                              "split_batch__edges",
                              "swa_metadata__mixed"};

std::string shipped(const std::string& name) { return MEGAMLA_SOURCE_DIR "/tests/golden/" + name + ".safetensors"; }

Report check(const std::string& path) {
  megamla_exec exec = MEGAMLA_EXEC_INIT;
  exec.device = MEGAMLA_DEVICE_CPU;
  return check_file(path, exec);
}

// A report either way, and where it is a failure its message is there and is one line.
void expect_sound(const Report& report) {
  if (report.verdict.passed()) return;
  EXPECT_FALSE(report.verdict.failure().empty());
  EXPECT_EQ(app::one_line(report.verdict.failure()), report.verdict.failure());
}

TEST(CheckMalformed, MissingTensors) {
  for (const char* name : kCases) {
    const EditableGolden whole(shipped(name));
    for (const auto& [tensor, ignored] : whole.tensors) {
      SCOPED_TRACE(std::string(name) + " without " + tensor);
      EditableGolden golden = whole;
      golden.tensors.erase(tensor);
      const Report report = check(golden.write());
      expect_sound(report);
      if (!report.verdict.passed() && report.verdict.rules().empty()) {
        EXPECT_NE(report.verdict.failure().find("expected"), std::string::npos) << report.verdict.failure();
      }
    }
  }
}

TEST(CheckMalformed, OtherShapesAndTypes) {
  for (const char* name : kCases) {
    const EditableGolden whole(shipped(name));
    for (const auto& [tensor, stored] : whole.tensors) {
      SCOPED_TRACE(std::string(name) + " with another " + tensor);
      EditableGolden golden = whole;
      golden.tensors.at(tensor).shape = {static_cast<int64_t>(stored.count())};  // flat
      expect_sound(check(golden.write()));
      golden = whole;
      golden.tensors.at(tensor) = {MEGAMLA_I32, {1, 1, 1, 1}, std::vector<uint8_t>(4, 0xff)};
      expect_sound(check(golden.write()));
      golden = whole;
      golden.tensors.at(tensor).shape = {0, 512};
      golden.tensors.at(tensor).bytes.clear();
      expect_sound(check(golden.write()));
    }
  }
}

TEST(CheckMalformed, AbsurdParameters) {
  for (const char* name : kCases) {
    const EditableGolden whole(shipped(name));
    for (const auto& [key, ignored] : whole.metadata) {
      for (const char* value : {"-1", "0", "1152921504606846976", "99999999999999999999999", "", "x\ny", "nan"}) {
        SCOPED_TRACE(std::string(name) + " with " + key + " = " + value);
        EditableGolden golden = whole;
        golden.metadata[key] = value;
        const Report report = check(golden.write());
        if (report.verdict.passed()) continue;
        EXPECT_FALSE(app::one_line(report.verdict.failure()).empty());
      }
    }
  }
}

TEST(CheckMalformed, CutShort) {
  std::ifstream in(shipped("global_topk__negative_table"), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::string path = testing::TempDir() + "megamla_cut.safetensors";
  for (size_t size = 0; size < whole.size(); size += size < 1200 ? 7 : 977) {
    std::ofstream(path, std::ios::binary | std::ios::trunc).write(whole.data(), static_cast<std::streamsize>(size));
    const Report report = check(path);
    EXPECT_FALSE(report.verdict.passed()) << size;
    EXPECT_EQ(report.verdict.failure().rfind(path + ": ", 0), 0U) << report.verdict.failure();
  }
}

TEST(CheckMalformed, NothingThere) {
  EXPECT_FALSE(check("/nonexistent.safetensors").verdict.passed());
  EXPECT_THROW(find_cases("/nonexistent"), CaseError);
  EXPECT_THROW(find_cases(MEGAMLA_SOURCE_DIR "/cmake"), CaseError);
}

}  // namespace
}  // namespace megamla::check
