// A mutator for files that begin with a safetensors header: what libFuzzer changes blindly hardly ever has a length or
// an offset that still fits. Half of the time the header's JSON is changed as JSON, and length and offsets are put
// right.
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "fuzz/choices.hpp"

extern "C" size_t LLVMFuzzerMutate(uint8_t* bytes, size_t size, size_t max_size);

namespace {

using megamla::fuzz::Choices;
using nlohmann::json;

json any_value(Choices& c) {
  switch (c.byte() % 8) {
    case 0:
      return c.number();
    case 1:
      return static_cast<uint64_t>(c.number());
    case 2:
      return std::to_string(c.number());
    case 3:
      return json::array({c.in(0, 9), c.in(0, 600)});
    case 4:
      return c.one_of<const char*>({"F32", "BF16", "I32", "I64", "U8", "F8_E4M3", "F8_E8M0", "F64", "F16", "", "planar",
                                    "interleaved", "nvfp4_288", "fp8_528", "fp8_584", "none", "nan", "1e999", "-0"});
    case 5:
      return nullptr;
    case 6:
      return json::object();
    default:
      return c.in(0, 600);
  }
}

// A random element of an object or list, or end().
json::iterator pick(json& parent, Choices& c) {
  if (!parent.is_structured() || parent.empty()) return parent.end();
  auto it = parent.begin();
  std::advance(it, c.in(0, static_cast<int64_t>(std::min<size_t>(parent.size(), 65535)) - 1));
  return it;
}

// Data in the order of the header, as long as dtype and shape ask, cut from the old data.
void pack_again(json& header, const std::vector<uint8_t>& old, std::vector<uint8_t>& data, size_t limit) {
  for (auto& [name, entry] : header.items()) {
    if (name == "__metadata__" || !entry.is_object()) continue;
    const auto dtype = entry.value("dtype", json());
    const auto shape = entry.value("shape", json());
    uint64_t bytes = dtype == "F32" || dtype == "I32"   ? 4
                     : dtype == "I64" || dtype == "F64" ? 8
                     : dtype == "BF16"                  ? 2
                                                        : 1;
    if (!shape.is_array()) continue;
    for (const auto& extent : shape) bytes = extent.is_number_unsigned() ? bytes * extent.get<uint64_t>() : SIZE_MAX;
    if (bytes > limit - data.size()) continue;
    uint64_t begin = 0;
    const auto offsets = entry.value("data_offsets", json());
    if (offsets.is_array() && !offsets.empty() && offsets[0].is_number_unsigned()) begin = offsets[0].get<uint64_t>();
    entry["data_offsets"] = {data.size(), data.size() + bytes};
    for (uint64_t i = 0; i < bytes; ++i) data.push_back(begin + i < old.size() ? old[begin + i] : 0);
  }
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* bytes, size_t size, size_t max_size, unsigned int seed) {
  uint64_t length = 0;
  if (seed % 2 == 0 || size < sizeof(length)) return LLVMFuzzerMutate(bytes, size, max_size);
  std::memcpy(&length, bytes, sizeof(length));
  if (length > size - sizeof(length)) return LLVMFuzzerMutate(bytes, size, max_size);
  json header = json::parse(bytes + sizeof(length), bytes + sizeof(length) + length, nullptr, false);
  if (!header.is_object()) return LLVMFuzzerMutate(bytes, size, max_size);

  uint8_t decisions[64];
  std::minstd_rand random(seed);
  for (uint8_t& d : decisions) d = static_cast<uint8_t>(random() >> 8);
  Choices c(decisions);
  const std::vector<uint8_t> old(bytes + sizeof(length) + length, bytes + size);
  const auto entry = pick(header, c);
  if (entry != header.end()) {
    const auto field = pick(*entry, c);
    const auto element = field == entry->end() ? field : pick(*field, c);
    if (c.rarely()) {
      header.erase(entry);
    } else if (field != entry->end()) {
      (element != field->end() && c.coin() ? *element : *field) = any_value(c);
    }
  }
  std::vector<uint8_t> data;
  if (c.byte() % 4 == 0) {
    data = old;  // offsets that no longer fit, too
  } else {
    pack_again(header, old, data, max_size);
  }
  const std::string text = header.dump(-1, ' ', false, json::error_handler_t::replace);
  length = text.size();
  if (sizeof(length) + length + data.size() > max_size) return LLVMFuzzerMutate(bytes, size, max_size);
  std::memcpy(bytes, &length, sizeof(length));
  std::memcpy(bytes + sizeof(length), text.data(), length);
  if (!data.empty()) std::memcpy(bytes + sizeof(length) + length, data.data(), data.size());
  return sizeof(length) + length + data.size();
}
