// Request traces: what is read, and the message of every bad line.
#include "io/trace.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/temp_folder.hpp"

namespace megamla {
namespace {

using io::TraceRequest;
using test::TempFolder;

constexpr const char* kGood = R"({"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [4, 7]})";

TEST(Trace, ReadsLines) {
  const TempFolder folder;
  // Blank lines, carriage returns, fields of other tools, fewer ids than blocks, no newline at the end.
  const std::string path = folder.write(
      "t.jsonl", std::string("\n") + kGood + "\r\n  \t\n" +
                     R"({"hash_ids":[],"x":{"y":[1]},"output_length":0,"input_length":513,"timestamp":27})");
  const auto trace = io::read_trace(path);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  ASSERT_EQ(trace.value().size(), 2U);
  EXPECT_EQ(trace.value()[0].timestamp_ms, 0);
  EXPECT_EQ(trace.value()[0].input_length, 600);
  EXPECT_EQ(trace.value()[0].output_length, 1);
  EXPECT_EQ(trace.value()[0].hash_ids, (std::vector<int64_t>{4, 7}));
  EXPECT_EQ(trace.value()[1].timestamp_ms, 27);
  EXPECT_TRUE(trace.value()[1].hash_ids.empty());
}

TEST(Trace, StopsAtTheLimit) {
  const TempFolder folder;
  const std::string path = folder.write("t.jsonl", std::string(kGood) + "\n" + kGood + "\nnot read\n");
  for (int64_t limit = 0; limit <= 2; ++limit) {
    const auto trace = io::read_trace(path, limit);
    ASSERT_TRUE(trace.ok()) << trace.status().message();
    EXPECT_EQ(static_cast<int64_t>(trace.value().size()), limit);
  }
  EXPECT_EQ(io::read_trace(path, 3).status().message(), path + ":3: expected a JSON object, found 'not read'");
  EXPECT_FALSE(io::read_trace(path).ok());
  const auto empty = io::read_trace(folder.write("empty.jsonl", ""));
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty.value().empty());
}

TEST(Trace, RefusesBadLines) {
  struct Case {
    const char* line;
    const char* message;
  };
  const Case cases[] = {
      {"[1]", "expected a JSON object, found [1]"},
      {R"({"timestamp": 0, )", R"(expected a JSON object, found '{"timestamp": 0, ')"},
      {R"({"timestamp":0} {"timestamp":1})", R"(expected a JSON object, found '{"timestamp":0} {"timestamp":1}')"},
      {"\x01\xff", R"(expected a JSON object, found '\x01\xff')"},
      {R"({"timestamp":0,"timestamp":1,"input_length":1,"output_length":1,"hash_ids":[]})",
       "timestamp: expected once, found twice"},
      {R"({"input_length":1,"output_length":1,"hash_ids":[]})", "timestamp: expected an integer, found nothing"},
      {R"({"timestamp":-1,"input_length":1,"output_length":1,"hash_ids":[]})",
       "timestamp: expected an integer in [0, 4503599627370496], found -1"},
      {R"({"timestamp":0,"input_length":"9","output_length":1,"hash_ids":[]})",
       "input_length: expected an integer in [0, 2147483648], found '9'"},
      {R"({"timestamp":0,"input_length":2147483649,"output_length":1,"hash_ids":[]})",
       "input_length: expected an integer in [0, 2147483648], found 2147483649"},
      {R"({"timestamp":0,"input_length":18446744073709551615,"output_length":1,"hash_ids":[]})",
       "input_length: expected an integer in [0, 2147483648], found 18446744073709551615"},
      {R"({"timestamp":0,"input_length":1,"output_length":1.5,"hash_ids":[]})",
       "output_length: expected an integer in [0, 2147483648], found 1.5"},
      {R"({"timestamp":0,"input_length":1,"output_length":1})", "hash_ids: expected a list of integers, found nothing"},
      {R"({"timestamp":0,"input_length":1,"output_length":1,"hash_ids":{}})",
       "hash_ids: expected a list of integers, found an object"},
      {R"({"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[null]})",
       "hash_ids: expected integers in [0, 2^63), found null"},
      {R"({"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[-2]})",
       "hash_ids: expected integers in [0, 2^63), found -2"},
      {R"({"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[1,2]})",
       "hash_ids: expected at most 1 entries for 512 tokens, found 2"},
      {R"({"timestamp":0,"input_length":0,"output_length":1,"hash_ids":[1]})",
       "hash_ids: expected at most 0 entries for 0 tokens, found 1"},
  };
  const TempFolder folder;
  for (const Case& c : cases) {
    const std::string path = folder.write("t.jsonl", std::string(kGood) + "\n\n" + c.line + "\n" + kGood + "\n");
    const auto trace = io::read_trace(path);
    ASSERT_FALSE(trace.ok()) << c.line;
    EXPECT_EQ(trace.status().code(), MEGAMLA_IO_ERROR);
    EXPECT_EQ(trace.status().message(), path + ":3: " + c.message);
  }
  EXPECT_EQ(io::read_trace(folder.file("none")).status().message(),
            folder.file("none") + ": cannot be opened as a trace");
  EXPECT_EQ(io::read_trace(folder.path()).status().message(), folder.path() + ": cannot be opened as a trace");
}

TEST(Trace, RoundTrip) {
  const TempFolder folder;
  std::vector<TraceRequest> requests;
  for (int64_t i = 0; i < 100; ++i) {
    TraceRequest r{i * 3000, i * 37, i % 5, {}};
    for (int64_t block = 0; block < (r.input_length + 511) / 512; ++block) r.hash_ids.push_back(i * 1000000007 + block);
    requests.push_back(r);
  }
  const std::string path = folder.file("t.jsonl");
  ASSERT_TRUE(io::write_trace(requests, path).ok());
  EXPECT_EQ(folder.entries(), 1);
  const auto read = io::read_trace(path);
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read.value().size(), requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(read.value()[i].timestamp_ms, requests[i].timestamp_ms);
    EXPECT_EQ(read.value()[i].input_length, requests[i].input_length);
    EXPECT_EQ(read.value()[i].output_length, requests[i].output_length);
    EXPECT_EQ(read.value()[i].hash_ids, requests[i].hash_ids);
  }
  EXPECT_EQ(io::write_trace(requests, folder.file("none/t")).message(),
            folder.file("none/t") + ": cannot be written: No such file or directory");
}

}  // namespace
}  // namespace megamla
