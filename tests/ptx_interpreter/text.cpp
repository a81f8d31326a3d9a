#include "text.hpp"

#include <charconv>
#include <cstring>

#include "lexer.hpp"

namespace ptx {
namespace {

struct TypeName {
  std::string_view name;
  Type type;
  int bytes;
};
constexpr TypeName kTypes[] = {
    {"pred", Type::kPred, 4},     {"b8", Type::kB8, 1},         {"b16", Type::kB16, 2}, {"b32", Type::kB32, 4},
    {"b64", Type::kB64, 8},       {"b128", Type::kB128, 16},    {"u8", Type::kU8, 1},   {"u16", Type::kU16, 2},
    {"u32", Type::kU32, 4},       {"u64", Type::kU64, 8},       {"s8", Type::kS8, 1},   {"s16", Type::kS16, 2},
    {"s32", Type::kS32, 4},       {"s64", Type::kS64, 8},       {"f16", Type::kF16, 2}, {"f16x2", Type::kF16x2, 4},
    {"bf16", Type::kBf16, 2},     {"bf16x2", Type::kBf16x2, 4}, {"f32", Type::kF32, 4}, {"f64", Type::kF64, 8},
    {"e4m3x2", Type::kE4m3x2, 2}, {"e5m2x2", Type::kE5m2x2, 2}};

// Decimal or 0x, with or without U; 0f and 0d are the bits of a float and a double.
uint64_t number(std::string_view word, bool negative, int line) {
  int base = 10;
  std::string_view digits = word;
  if (word.size() > 2 && word[0] == '0') {
    const char kind = word[1];
    if (kind == 'x' || kind == 'X' || kind == 'f' || kind == 'F' || kind == 'd' || kind == 'D') {
      base = 16;
      digits.remove_prefix(2);
    }
  }
  if (!digits.empty() && digits.back() == 'U') digits.remove_suffix(1);
  uint64_t value = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) {
    throw std::runtime_error("PTX line " + std::to_string(line) + ": expected a number, got '" + std::string(word) +
                             "'");
  }
  return negative ? ~value + 1 : value;
}
bool is_number(std::string_view word) { return !word.empty() && word[0] >= '0' && word[0] <= '9'; }

int64_t take_integer(Lexer& lexer) {
  const bool negative = lexer.take_if("-");
  const int line = lexer.line();
  return static_cast<int64_t>(number(lexer.take(), negative, line));
}

// After its space: [.align n] .type name [[count]] [= {...}]
Variable take_variable(Lexer& lexer, Space space) {
  Variable v;
  v.space = space;
  for (;;) {
    if (lexer.take_if(".align")) {
      v.align = take_integer(lexer);
    } else if (lexer.take_if(".ptr")) {
      if (lexer.word()[0] == '.' && !lexer.is(".align")) lexer.take();
      if (lexer.take_if(".align")) take_integer(lexer);
    } else if (lexer.word().substr(0, 1) == ".") {
      v.type = type_of(lexer.take().substr(1));
    } else {
      break;
    }
  }
  v.name = lexer.take();
  const int64_t element = bytes_of(v.type);
  if (v.align < element) v.align = element;
  int64_t count = 1;
  while (lexer.take_if("[")) {
    count *= lexer.is("]") ? 0 : take_integer(lexer);
    lexer.expect("]");
  }
  v.bytes = count * element;
  if (!lexer.take_if("=")) return v;
  const bool list = lexer.take_if("{");
  do {
    if (lexer.is("}")) break;
    const uint64_t value = static_cast<uint64_t>(take_integer(lexer));
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    v.initial.insert(v.initial.end(), bytes, bytes + element);
  } while (lexer.take_if(","));
  if (list) lexer.expect("}");
  v.initial.resize(static_cast<size_t>(v.bytes));
  return v;
}

std::vector<Variable> take_params(Lexer& lexer) {
  std::vector<Variable> list;
  if (!lexer.take_if("(")) return list;
  while (!lexer.take_if(")")) {
    lexer.expect(".param");
    list.push_back(take_variable(lexer, Space::kParam));
    lexer.take_if(",");
  }
  return list;
}

Function take_head(Lexer& lexer, bool is_entry) {
  Function f;
  f.is_entry = is_entry;
  if (!is_entry) f.results = take_params(lexer);
  f.name = lexer.take();
  f.params = take_params(lexer);
  while (!lexer.done() && !lexer.is("{") && !lexer.is(";")) {
    const std::string_view directive = lexer.take();
    if (directive != ".maxntid" && directive != ".reqntid") continue;
    f.exact_threads = directive == ".reqntid";
    f.max_threads = static_cast<int>(take_integer(lexer));
    while (lexer.take_if(",")) f.max_threads *= static_cast<int>(take_integer(lexer));
  }
  return f;
}

// The body of a function: scopes, declarations and statements.
class BodyParser {
 public:
  BodyParser(Lexer& lexer, Function& f) : lexer_(lexer), f_(f) {}

  void parse() {
    lexer_.expect("{");
    open();
    while (!scopes_.empty()) {
      if (lexer_.done()) lexer_.fail("}");
      if (lexer_.take_if("{")) {
        open();
      } else if (lexer_.take_if("}")) {
        scopes_.pop_back();
      } else if (!lexer_.take_if(";")) {
        item();
      }
    }
  }

 private:
  struct Scope {
    int id;
    std::map<std::string, int, std::less<>> registers;               // exact names
    std::map<std::string, std::pair<int, int>, std::less<>> ranges;  // prefix -> first register, count
    std::map<std::string, std::string, std::less<>> variables;       // name -> unique name
  };

  void open() {
    const int id = static_cast<int>(f_.scope_parents.size());
    f_.scope_parents.push_back(scopes_.empty() ? -1 : scopes_.back().id);
    scopes_.push_back({id, {}, {}, {}});
  }

  void item() {
    const std::string_view word = lexer_.word();
    if (word == ".reg") return registers();
    if (word == ".shared" || word == ".local" || word == ".param") return variable();
    if (word == ".loc") return location();
    if (word == ".pragma") return until_semicolon();
    if (word[0] == '.') lexer_.fail("a declaration");
    if (word != "@" && word != "bra" && after_word() == ':') return label();
    statement();
  }

  char after_word() const {
    const char* p = lexer_.word().data() + lexer_.word().size();
    while (*p == ' ' || *p == '\t') ++p;
    return *p;
  }

  void label() {
    const std::string name(lexer_.take());
    lexer_.expect(":");
    if (lexer_.take_if(".branchtargets")) {
      auto& targets = f_.branch_targets[name];
      do targets.emplace_back(lexer_.take());
      while (lexer_.take_if(","));
      lexer_.expect(";");
      return;
    }
    f_.labels[{scopes_.back().id, name}] = f_.body.size();
  }

  void registers() {
    lexer_.expect(".reg");
    if (lexer_.is(".v2") || lexer_.is(".v4")) lexer_.fail("a scalar register");
    const Type type = type_of(lexer_.take().substr(1));
    do {
      const std::string name(lexer_.take());
      int count = 1;
      const int first = static_cast<int>(f_.registers.size());
      if (lexer_.take_if("<")) {
        count = static_cast<int>(take_integer(lexer_));
        lexer_.expect(">");
        scopes_.back().ranges[name] = {first, count};
      } else {
        scopes_.back().registers[name] = first;
      }
      f_.registers.insert(f_.registers.end(), static_cast<size_t>(count), type);
    } while (lexer_.take_if(","));
    lexer_.expect(";");
  }

  void variable() {
    const std::string_view word = lexer_.take();
    const Space space = word == ".shared" ? Space::kShared : word == ".local" ? Space::kLocal : Space::kParam;
    Variable v = take_variable(lexer_, space);
    lexer_.expect(";");
    const std::string unique = v.name + "#" + std::to_string(f_.variables.size());
    scopes_.back().variables[v.name] = unique;
    v.name = unique;
    f_.variables.push_back(std::move(v));
  }

  // .loc file line column[, function_name ..., inlined_at file line column]
  void location() {
    const int line = lexer_.line();
    lexer_.take();
    source_file_ = static_cast<int>(take_integer(lexer_));
    source_line_ = static_cast<int>(take_integer(lexer_));
    while (!lexer_.done() && lexer_.line() == line) lexer_.take();
  }

  void until_semicolon() {
    while (!lexer_.done() && !lexer_.is(";")) lexer_.take();
    lexer_.expect(";");
  }

  void statement() {
    Statement s;
    s.line = lexer_.line();
    s.source_file = source_file_;
    s.source_line = source_line_;
    s.scope = scopes_.back().id;
    if (lexer_.take_if("@")) {
      s.guard_negated = lexer_.take_if("!");
      s.guard = find_register(lexer_.take());
      if (s.guard < 0) lexer_.fail("a declared predicate before this");
    }
    s.opcode = lexer_.take();
    while (!lexer_.take_if(";")) {
      s.operands.push_back(operand());
      lexer_.take_if(",");
    }
    f_.body.push_back(std::move(s));
  }

  Operand list(std::string_view end) {
    Operand o;
    o.kind = Operand::Kind::kVector;
    while (!lexer_.take_if(end)) {
      o.parts.push_back(operand());
      lexer_.take_if(",");
    }
    return o;
  }

  Operand operand() {
    if (lexer_.take_if("{")) return list("}");
    if (lexer_.take_if("(")) return list(")");
    if (lexer_.take_if("[")) return address();
    Operand o;
    o.negated = lexer_.take_if("!");
    const bool negative = lexer_.take_if("-");
    const int line = lexer_.line();
    const std::string_view word = lexer_.take();
    if (is_number(word)) {
      o.kind = Operand::Kind::kImmediate;
      o.value = number(word, negative, line);
      return o;
    }
    if (word == "_") return o;
    name(o, word);
    if (lexer_.take_if("+")) o.value = static_cast<uint64_t>(take_integer(lexer_));  // symbol+offset
    if (lexer_.take_if("|")) o.parts.push_back(operand());
    return o;
  }

  // [base], [base+offset], [offset]; what comes after a comma within the brackets are further parts.
  Operand address() {
    Operand o;
    if (is_number(lexer_.word()) || lexer_.is("-")) {
      o.value = static_cast<uint64_t>(take_integer(lexer_));
    } else {
      name(o, lexer_.take());
      if (lexer_.take_if("+")) {
        o.value = static_cast<uint64_t>(take_integer(lexer_));
      } else if (lexer_.is("-")) {
        o.value = static_cast<uint64_t>(take_integer(lexer_));
      }
    }
    o.kind = Operand::Kind::kAddress;
    while (lexer_.take_if(",")) o.parts.push_back(operand());
    lexer_.expect("]");
    return o;
  }

  void name(Operand& o, std::string_view word) {
    o.reg = find_register(word);
    if (o.reg >= 0) {
      o.kind = Operand::Kind::kRegister;
      return;
    }
    if (word[0] == '%' || word == "WARP_SZ") {
      o.kind = Operand::Kind::kSpecial;
      o.name = word;
      return;
    }
    o.kind = Operand::Kind::kSymbol;
    o.name = word;
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->variables.find(word); found != scope->variables.end()) {
        o.name = found->second;
        return;
      }
    }
  }

  int find_register(std::string_view word) const {
    size_t digits = word.size();
    while (digits > 0 && word[digits - 1] >= '0' && word[digits - 1] <= '9') --digits;
    const std::string_view prefix = word.substr(0, digits);
    int index = -1;
    if (digits < word.size()) std::from_chars(word.data() + digits, word.data() + word.size(), index);
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto exact = scope->registers.find(word); exact != scope->registers.end()) return exact->second;
      if (index < 0) continue;
      if (const auto range = scope->ranges.find(prefix); range != scope->ranges.end() && index < range->second.second) {
        return range->second.first + index;
      }
    }
    return -1;
  }

  Lexer& lexer_;
  Function& f_;
  std::vector<Scope> scopes_;
  int source_file_ = 0;
  int source_line_ = 0;
};

}  // namespace

Type type_of(std::string_view name) {
  for (const TypeName& t : kTypes) {
    if (t.name == name) return t.type;
  }
  return Type::kNone;
}

int bytes_of(Type type) {
  for (const TypeName& t : kTypes) {
    if (t.type == type) return t.bytes;
  }
  return 0;
}

int64_t Function::place(int scope, const std::string& label) const {
  for (; scope >= 0; scope = scope_parents[static_cast<size_t>(scope)]) {
    if (const auto found = labels.find({scope, label}); found != labels.end())
      return static_cast<int64_t>(found->second);
  }
  return -1;
}

Module::Module(std::string text) : text_(std::move(text)) {
  Lexer lexer(text_, 0, 1);
  bool is_extern = false;
  while (!lexer.done()) {
    const std::string word(lexer.take());
    if (word == ".version" || word == ".target" || word == ".address_size") {
      lexer.skip_line();
    } else if (word == ".file") {
      const int index = static_cast<int>(take_integer(lexer));
      std::string_view path = lexer.take();
      files_[index] = path.substr(1, path.size() - 2);
      while (lexer.take_if(",")) take_integer(lexer);
    } else if (word == ".section") {
      lexer.take();
      lexer.skip_braces();
    } else if (word == ".entry" || word == ".func") {
      Function f = take_head(lexer, word == ".entry");
      const std::string name = f.name;
      if (lexer.is("{")) {
        bodies_[name] = {lexer.offset(), lexer.line()};
        lexer.skip_braces();
        heads_[name] = std::move(f);
      } else {
        heads_.try_emplace(name, std::move(f));
      }
    } else if (word == ".global" || word == ".const" || word == ".shared") {
      const Space space = word == ".shared" ? Space::kShared : word == ".const" ? Space::kConst : Space::kGlobal;
      Variable v = take_variable(lexer, space);
      v.is_extern = is_extern;
      variables_.push_back(std::move(v));
    }
    is_extern = word == ".extern";
  }
}

Function Module::parse(const std::string& function) const {
  Function f = heads_.at(function);
  const auto body = bodies_.find(function);
  if (body == bodies_.end()) throw std::runtime_error("PTX function without a body: " + function);
  Lexer lexer(text_, body->second.first, body->second.second);
  BodyParser(lexer, f).parse();
  return f;
}

std::string_view Module::line(int number) const {
  const char* p = text_.data();
  const char* end = p + text_.size();
  for (int line = 1; line < number && p < end; ++p) line += *p == '\n' ? 1 : 0;
  while (p < end && (*p == ' ' || *p == '\t')) ++p;
  const char* stop = p;
  while (stop < end && *stop != '\n') ++stop;
  return {p, static_cast<size_t>(stop - p)};
}

}  // namespace ptx
