// JSON and text files, for the readers and writers of this folder: one way to parse, to quote in a message, to write.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "core/result.hpp"

namespace megamla::io {

// Parses text that must be one JSON object. A name that stands twice in one object is refused: which of the two holds
// would be a guess. `where` begins the message.
Result<nlohmann::json> parse_json_object(const std::string& where, std::string_view text);
Result<nlohmann::json> read_json_object(const std::string& path);

// What a message quotes of a file's content: one line, no control characters, at most about 80 bytes. Lists of plain
// values are shown, other containers named.
std::string brief(std::string_view text);
std::string describe(const nlohmann::json& value);

// Appears under its name whole or not at all.
Status write_text_file(const std::string& path, std::string_view text);
// Where a file is written before it is renamed to `path`; differs between processes that write the same file.
std::string temporary_name(const std::string& path);

}  // namespace megamla::io
