// The safetensors reader against good files, every way a file can be broken, and the writer.
#include "io/safetensors.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "support/temp_folder.hpp"

namespace megamla {
namespace {

using io::SafetensorsFile;
using io::SafetensorsWriter;
using test::TempFolder;

std::string length_prefix(uint64_t length) { return {reinterpret_cast<const char*>(&length), sizeof(length)}; }

std::string file_of(const std::string& header, size_t data_bytes) {
  return length_prefix(header.size()) + header + std::string(data_bytes, '\x11');
}

// The message of a file that must be refused, without the path in front.
std::string refusal(const TempFolder& folder, const std::string& content) {
  const std::string path = folder.write("bad.safetensors", content);
  const auto file = SafetensorsFile::open(path);
  if (file.ok()) return "opened";
  EXPECT_EQ(file.status().code(), MEGAMLA_IO_ERROR);
  const std::string& message = file.status().message();
  EXPECT_EQ(message.rfind(path + ": ", 0), 0U) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message.substr(std::min(message.size(), path.size() + 2));
}

TEST(Safetensors, RefusesBrokenFraming) {
  const TempFolder folder;
  const std::string good = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  EXPECT_EQ(refusal(folder, file_of(good, 4)), "opened");
  EXPECT_EQ(refusal(folder, ""), "header: expected at least 8 bytes, found 0");
  EXPECT_EQ(refusal(folder, "1234567"), "header: expected at least 8 bytes, found 7");
  EXPECT_EQ(refusal(folder, length_prefix(3) + "{}"), "header length: expected at most 2, found 3");
  EXPECT_EQ(refusal(folder, length_prefix(UINT64_MAX) + "{}"),
            "header length: expected at most 2, found 18446744073709551615");
  EXPECT_EQ(refusal(folder, length_prefix(0)), "header: expected a JSON object, found ''");
  EXPECT_EQ(refusal(folder, file_of("[1, 2]", 0)), "header: expected a JSON object, found [1, 2]");
  EXPECT_EQ(refusal(folder, file_of("hello\nworld", 0)), "header: expected a JSON object, found 'hello\\x0aworld'");
  EXPECT_EQ(refusal(folder, file_of(good.substr(0, 20), 4)),
            "header: expected a JSON object, found '{\"a\":{\"dtype\":\"U8\",\"'");
  EXPECT_EQ(refusal(folder, file_of(good + std::string(1, '\0') + "x", 4)),
            "header: expected a JSON object, found a zero byte in it");
  EXPECT_EQ(refusal(folder, file_of("{\"a\xff\":{}}", 0)), "header: expected a JSON object, found '{\"a\\xff\":{}}'");
  // Every shorter prefix of a good file is refused; none is read beyond its end (sanitizers watch).
  const std::string whole = file_of(good, 4);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(refusal(folder, whole.substr(0, size)), "opened") << "first " << size << " bytes";
  }
}

TEST(Safetensors, RefusesBrokenHeaders) {
  struct Case {
    const char* header;
    const char* message;
  };
  const Case cases[] = {
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       "header: a: expected once, found twice"},
      {R"({"a":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}})",
       "header: dtype: expected once, found twice"},
      {R"({"":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"":{}})", "header: : expected once, found twice"},
      {R"({"a":7})", "a: expected an object, found 7"},
      {R"({"a":{"shape":[4],"data_offsets":[0,4]}})", "a: dtype: expected a string, found nothing"},
      {R"({"a":{"dtype":4,"shape":[4],"data_offsets":[0,4]}})", "a: dtype: expected a string, found 4"},
      {R"({"a":{"dtype":"U8","data_offsets":[0,4]}})",
       "a: shape: expected a list of at most 16 integers, found nothing"},
      {R"({"a":{"dtype":"U8","shape":4,"data_offsets":[0,4]}})",
       "a: shape: expected a list of at most 16 integers, found 4"},
      {R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})",
       "a: shape: expected a list of at most 16 integers, found a list of 17"},
      {R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})",
       "a: shape: expected non-negative integers, found [-4]"},
      {R"({"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})",
       "a: shape: expected non-negative integers, found [4.0]"},
      {R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,4]}})",
       "a: shape: expected non-negative integers, found [18446744073709551615]"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,0]}})",
       "a: shape: expected a product below 2^60, found [4294967296, 4294967296, 4294967296]"},
      {R"({"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})",
       "a: shape: expected a product below 2^60, found [2305843009213693952]"},
      {R"({"a":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})",
       "a: shape: expected a product below 2^60, found [0, 4294967296, 4294967296]"},
      {R"({"a":{"dtype":"U8","shape":[4]}})", "a: data_offsets: expected two non-negative integers, found nothing"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,8]}})",
       "a: data_offsets: expected two non-negative integers, found [0, 4, 8]"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[-4,0]}})",
       "a: data_offsets: expected two non-negative integers, found [-4, 0]"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})",
       "a: data_offsets: expected a range within 16 data bytes, found [4, 0]"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[13,17]}})",
       "a: data_offsets: expected a range within 16 data bytes, found [13, 17]"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[18446744073709551612,18446744073709551615]}})",
       "a: data_offsets: expected a range within 16 data bytes, found [18446744073709551612, 18446744073709551615]"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
       "a: data_offsets: expected 8 bytes for F32 [2], found 4"},
      {R"({"a":{"dtype":"BF16","shape":[],"data_offsets":[0,4]}})",
       "a: data_offsets: expected 2 bytes for BF16 [], found 4"},
      {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[7,15]}})",
       "b: expected bytes of its own, found an overlap with a"},
      {R"({"z":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
       "b: expected bytes of its own, found an overlap with z"},
      {R"({"__metadata__":"x"})", "__metadata__: expected an object, found 'x'"},
      {R"({"__metadata__":{"k":1}})", "__metadata__: k: expected a string, found 1"},
      {"{\"a\\nb\":[]}", "a\\x0ab: expected an object, found []"},
  };
  const TempFolder folder;
  for (const Case& c : cases) EXPECT_EQ(refusal(folder, file_of(c.header, 16)), c.message) << c.header;
}

// A message may not follow nesting that is as deep as the file wants it.
TEST(Safetensors, SurvivesDeepNesting) {
  const TempFolder folder;
  constexpr size_t kDepth = 200000;
  const std::string nested = std::string(kDepth, '[') + std::string(kDepth, ']');
  EXPECT_EQ(refusal(folder, file_of(R"({"a":{"dtype":"U8","shape":)" + nested + "}}", 0)),
            "a: shape: expected non-negative integers, found a list of 1");
  EXPECT_EQ(refusal(folder, file_of(R"({"a":{"dtype":"U8","shape":[],"data_offsets":)" + nested + "}}", 0)),
            "a: data_offsets: expected two non-negative integers, found a list of 1");
}

TEST(Safetensors, RefusesWhatIsNoFile) {
  const TempFolder folder;
  EXPECT_EQ(SafetensorsFile::open(folder.path()).status().message(),
            folder.path() + ": expected a regular file, found something else");
  EXPECT_EQ(SafetensorsFile::open(folder.file("none")).status().message(),
            folder.file("none") + ": cannot be opened: No such file or directory");
}

TEST(Safetensors, ReadsTensors) {
  const TempFolder folder;
  // Data begin at an odd address; an empty tensor may lie anywhere; gaps are allowed.
  std::string header = R"({"__metadata__":{"k":"v"},"f":{"dtype":"F32","shape":[2,1],"data_offsets":[1,9]},)"
                       R"("empty":{"dtype":"BF16","shape":[0,3],"data_offsets":[5,5]},)"
                       R"("scalar":{"dtype":"U8","shape":[],"data_offsets":[11,12]},)"
                       R"("half":{"dtype":"F16","shape":[2],"data_offsets":[12,16]},)"
                       R"("five":{"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[9,10]},)"
                       R"("next":{"dtype":"F4","shape":[2],"data_offsets":[10,11]}})";
  if (header.size() % 2 == 0) header += ' ';
  const auto opened = SafetensorsFile::open(folder.write("good.safetensors", file_of(header, 16)));
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const SafetensorsFile& file = opened.value();
  EXPECT_EQ(file.tensors().size(), 6U);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"k", "v"}}));

  const auto f = file.view("f");
  ASSERT_TRUE(f.ok());
  EXPECT_EQ(f.value().dtype, MEGAMLA_F32);
  EXPECT_EQ(f.value().ndim, 2);
  EXPECT_EQ(f.value().shape[0], 2);
  EXPECT_EQ(f.value().stride[0], 1);
  EXPECT_EQ(f.value().cuda_device, -1);
  EXPECT_EQ(f.value().data, file.find("f")->data);
  const auto empty = file.view("empty");
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(empty.value().shape[0], 0);
  EXPECT_EQ(file.find("empty")->bytes, 0);
  const auto scalar = file.view("scalar");
  ASSERT_TRUE(scalar.ok());
  EXPECT_EQ(scalar.value().ndim, 1);
  EXPECT_EQ(scalar.value().shape[0], 1);

  const std::string& path = file.path();
  EXPECT_EQ(file.view("half").status().message(),
            path + ": half: dtype: expected one that this library reads, found 'F16'");
  EXPECT_EQ(file.view("next").status().message(),
            path + ": next: dtype: expected one that this library reads, found 'F4'");
  EXPECT_EQ(file.view("five").status().message(), path + ": five: shape: expected at most 4 dimensions, found 5");
  EXPECT_EQ(file.view("none").status().message(), path + ": none: expected a tensor, found nothing");
}

TEST(SafetensorsWriter, RoundTripOfEveryDtype) {
  const TempFolder folder;
  const std::string path = folder.file("all.safetensors");
  std::vector<SafetensorsWriter::Declaration> declarations;
  std::vector<std::vector<uint8_t>> contents;
  for (int dtype = MEGAMLA_U8; dtype <= MEGAMLA_F8_E8M0; ++dtype) {
    const auto type = static_cast<megamla_dtype>(dtype);
    declarations.push_back({std::string("t.") + megamla_dtype_name(type), type, {3, 0, 2}});
    declarations.push_back({std::string("u.\"\n") + megamla_dtype_name(type), type, {dtype + 1, 3}});
  }
  auto writer = SafetensorsWriter::create(path, declarations, {{"seed", "7"}, {"ü", ""}});
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  for (const auto& d : declarations) {
    const int64_t elements = std::accumulate(d.shape.begin(), d.shape.end(), int64_t{1}, std::multiplies<>());
    std::vector<uint8_t> bytes(static_cast<size_t>(elements * megamla_dtype_size(d.dtype)));
    std::iota(bytes.begin(), bytes.end(), static_cast<uint8_t>(17 * contents.size()));
    const auto half = static_cast<int64_t>(bytes.size() / 2);  // in two parts
    ASSERT_TRUE(writer.value().write(bytes.data(), half).ok());
    ASSERT_TRUE(writer.value().write(bytes.data() + half, static_cast<int64_t>(bytes.size()) - half).ok());
    contents.push_back(bytes);
  }
  EXPECT_FALSE(std::filesystem::exists(path));  // not before it is whole
  ASSERT_TRUE(writer.value().finish().ok());
  EXPECT_FALSE(writer.value().finish().ok());
  EXPECT_EQ(folder.entries(), 1);

  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, folder.read("all.safetensors").data(), sizeof(header_bytes));
  EXPECT_EQ((header_bytes + 8) % 16, 0U);
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file.value().metadata(), (std::map<std::string, std::string>{{"seed", "7"}, {"ü", ""}}));
  ASSERT_EQ(file.value().tensors().size(), declarations.size());
  for (size_t i = 0; i < declarations.size(); ++i) {
    const io::StoredTensor* stored = file.value().find(declarations[i].name);
    ASSERT_NE(stored, nullptr) << declarations[i].name;
    EXPECT_EQ(stored->dtype, megamla_dtype_name(declarations[i].dtype));
    EXPECT_EQ(stored->shape, declarations[i].shape);
    EXPECT_EQ(std::vector<uint8_t>(stored->data, stored->data + stored->bytes), contents[i]);
  }
}

TEST(SafetensorsWriter, LeavesNoHalfFile) {
  const TempFolder folder;
  const std::string path = folder.file("x.safetensors");
  folder.write("x.safetensors", "older");
  {
    auto writer = SafetensorsWriter::create(path, {{"a", MEGAMLA_I32, {4}}});
    ASSERT_TRUE(writer.ok());
    const char bytes[17] = {};
    EXPECT_EQ(writer.value().write(bytes, 17).message(), path + ": expected at most 16 more bytes, got 17");
    EXPECT_EQ(writer.value().write(bytes, -1).message(), path + ": expected at most 16 more bytes, got -1");
    ASSERT_TRUE(writer.value().write(bytes, 15).ok());
    EXPECT_EQ(writer.value().finish().message(), path + ": expected 16 data bytes, got 15");
  }
  EXPECT_EQ(folder.entries(), 1);
  EXPECT_EQ(folder.read("x.safetensors"), "older");
}

TEST(SafetensorsWriter, RefusesBadDeclarations) {
  const TempFolder folder;
  const std::string path = folder.file("x.safetensors");
  const auto refused = [&](const std::vector<SafetensorsWriter::Declaration>& tensors, const std::string& message,
                           const std::map<std::string, std::string>& metadata = {}) {
    const auto writer = SafetensorsWriter::create(path, tensors, metadata);
    ASSERT_FALSE(writer.ok()) << message;
    EXPECT_NE(writer.status().message().find(message), std::string::npos) << writer.status().message();
  };
  refused({{"a", MEGAMLA_U8, {1}}, {"a", MEGAMLA_U8, {1}}}, "a: expected a name of its own, got it twice");
  refused({{"__metadata__", MEGAMLA_U8, {1}}}, "__metadata__: expected a name of its own");
  refused({{"a", MEGAMLA_U8, {2, -1}}}, "a: shape: expected non-negative dimensions and less than 2^62 bytes");
  refused({{"a", MEGAMLA_F64, {int64_t{1} << 31, int64_t{1} << 31}}}, "less than 2^62 bytes, got [2147483648, 2147");
  refused({{"a\xff", MEGAMLA_U8, {1}}}, "names and metadata: expected UTF-8");
  refused({{"a", MEGAMLA_U8, {1}}}, "names and metadata: expected UTF-8", {{"k", "\xff"}});
  EXPECT_EQ(folder.entries(), 0);
  const auto nowhere = SafetensorsWriter::create(folder.file("none/x"), {});
  EXPECT_EQ(nowhere.status().message(), folder.file("none/x") + ": cannot be written: No such file or directory");
}

}  // namespace
}  // namespace megamla
