// Words of PTX text.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace ptx {

class Lexer {
 public:
  Lexer(std::string_view text, size_t at, int line) : text_(text), at_(at), line_(line) { next(); }

  std::string_view word() const { return word_; }  // empty at the end
  int line() const { return word_line_; }
  size_t offset() const { return static_cast<size_t>(word_.data() - text_.data()); }
  bool is(std::string_view expected) const { return word_ == expected; }
  bool done() const { return word_.empty(); }

  std::string_view take() {
    const std::string_view now = word_;
    next();
    return now;
  }
  bool take_if(std::string_view expected) {
    if (!is(expected)) return false;
    next();
    return true;
  }
  void expect(std::string_view expected) {
    if (!take_if(expected)) fail(expected);
  }
  [[noreturn]] void fail(std::string_view expected) const {
    throw std::runtime_error("PTX line " + std::to_string(word_line_) + ": expected " + std::string(expected) +
                             ", got '" + std::string(word_) + "'");
  }
  void skip_line() {
    const int line = word_line_;
    while (!done() && word_line_ == line) next();
  }
  // From an opening brace to what follows its partner.
  void skip_braces() {
    int depth = 0;
    do {
      if (is("{")) ++depth;
      if (is("}")) --depth;
      next();
    } while (depth > 0 && !done());
  }

 private:
  static bool in_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' ||
           c == '%' || c == '.';
  }
  void next() {
    skip_blanks();
    word_line_ = line_;
    const size_t begin = at_;
    if (at_ >= text_.size()) {
      word_ = {text_.data() + text_.size(), 0};
      return;
    }
    if (text_[at_] == '"') {
      do ++at_;
      while (at_ < text_.size() && text_[at_] != '"');
      ++at_;
    } else if (in_name(text_[at_])) {
      while (at_ < text_.size() && (in_name(text_[at_]) || is_double_colon())) at_ += text_[at_] == ':' ? 2 : 1;
    } else {
      ++at_;
    }
    word_ = text_.substr(begin, at_ - begin);
  }
  bool is_double_colon() const { return text_.substr(at_, 2) == "::"; }
  void skip_blanks() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\n') ++line_;
      if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        ++at_;
      } else if (text_.substr(at_, 2) == "//") {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (text_.substr(at_, 2) == "/*") {
        for (at_ += 2; at_ < text_.size() && text_.substr(at_, 2) != "*/"; ++at_) line_ += text_[at_] == '\n' ? 1 : 0;
        at_ += 2;
      } else {
        return;
      }
    }
  }

  std::string_view text_;
  size_t at_;
  int line_;
  std::string_view word_;
  int word_line_ = 0;
};

}  // namespace ptx
