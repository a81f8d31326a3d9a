#include "io/json_file.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "io/mapped_file.hpp"

namespace megamla::io {
namespace {

using nlohmann::json;

constexpr size_t kBriefBytes = 80;

}  // namespace

Result<json> parse_json_object(const std::string& where, std::string_view text) {
  // The parser takes a zero byte for the end and would ignore what follows it.
  if (text.find('\0') != std::string_view::npos)
    return io_error("{}: expected a JSON object, found a zero byte in it", where);
  std::vector<std::set<std::string>> open_objects;
  std::string twice;
  bool duplicate = false;
  const auto callback = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == json::parse_event_t::object_end) open_objects.pop_back();
    if (event == json::parse_event_t::key && !duplicate &&
        !open_objects.back().insert(value.get<std::string>()).second) {
      duplicate = true;
      twice = value.get<std::string>();
    }
    return true;
  };
  json parsed = json::parse(text.begin(), text.end(), callback, false);
  if (parsed.is_discarded()) return io_error("{}: expected a JSON object, found '{}'", where, brief(text));
  if (!parsed.is_object()) return io_error("{}: expected a JSON object, found {}", where, describe(parsed));
  if (duplicate) return io_error("{}: {}: expected once, found twice", where, brief(twice));
  return parsed;
}

Result<json> read_json_object(const std::string& path) {
  const Result<MappedFile> file = MappedFile::open(path);
  if (!file.ok()) return file.status();
  const std::span<const uint8_t> bytes = file.value().bytes();
  return parse_json_object(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::string brief(std::string_view text) {
  std::string line;
  for (const char c : text.substr(0, kBriefBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    line += byte < 0x20 || byte >= 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return text.size() > kBriefBytes ? line + "..." : line;
}

std::string describe(const json& value) {
  if (value.is_string()) return fmt::format("'{}'", brief(value.get_ref<const std::string&>()));
  if (value.is_object()) return "an object";
  if (!value.is_array()) return value.dump();
  // Nesting is as deep as the file wants it to be, so nothing here follows it.
  if (value.size() > 16 || std::any_of(value.begin(), value.end(), [](const json& e) { return e.is_structured(); })) {
    return fmt::format("a list of {}", value.size());
  }
  std::string list;
  for (const json& entry : value) list += (list.empty() ? "" : ", ") + describe(entry);
  return "[" + list + "]";
}

std::string temporary_name(const std::string& path) { return fmt::format("{}.{}.part", path, ::getpid()); }

Status write_text_file(const std::string& path, std::string_view text) {
  const std::string temporary = temporary_name(path);
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  if (file == nullptr) return io_error("{}: cannot be written: {}", path, std::strerror(errno));
  bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  written = std::fclose(file) == 0 && written;
  std::error_code error(errno, std::generic_category());
  if (written) std::filesystem::rename(temporary, path, error);
  if (written && !error) return {};
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  return io_error("{}: cannot be written: {}", path, error.message());
}

}  // namespace megamla::io
