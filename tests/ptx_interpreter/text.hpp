// PTX text as functions, variables and statements: names are resolved to register numbers, nothing is interpreted yet.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ptx {

enum class Type : uint8_t {
  kNone,
  kPred,
  kB8,
  kB16,
  kB32,
  kB64,
  kB128,
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kF16,
  kF16x2,
  kBf16,
  kBf16x2,
  kF32,
  kF64,
  kE4m3x2,
  kE5m2x2
};
Type type_of(std::string_view name);  // "u32" -> kU32; kNone for what is no type
int bytes_of(Type type);

struct Operand {
  enum class Kind : uint8_t { kRegister, kImmediate, kSymbol, kSpecial, kAddress, kVector, kSink };
  Kind kind = Kind::kSink;
  bool negated = false;        // of a predicate
  int reg = -1;                // kRegister, and kAddress with a register as base
  uint64_t value = 0;          // bits of an immediate, offset of an address
  std::string name;            // kSymbol, kSpecial, and kAddress with a symbol as base
  std::vector<Operand> parts;  // kVector; the second register of `a|p`
};

struct Statement {
  int guard = -1;  // register of the predicate
  bool guard_negated = false;
  std::string opcode;
  std::vector<Operand> operands;
  int line = 0;         // of the PTX text
  int source_file = 0;  // of the CUDA source, from .loc
  int source_line = 0;
  int scope = 0;
};

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kSharedCluster, kLocal, kParam, kConst };

struct Variable {
  std::string name;
  Space space = Space::kGlobal;
  Type type = Type::kB8;
  int64_t align = 1;
  int64_t bytes = 0;
  bool is_extern = false;
  std::vector<uint8_t> initial;  // empty: zeros
};

struct Function {
  std::string name;
  bool is_entry = false;
  std::vector<Variable> results, params;
  int max_threads = 0;  // .maxntid or .reqntid, 0: not said
  bool exact_threads = false;
  std::vector<Type> registers;
  std::vector<Variable> variables;  // .shared, .local and .param of the body
  std::vector<Statement> body;
  std::map<std::pair<int, std::string>, size_t> labels;  // (scope, name) -> index into body
  std::vector<int> scope_parents;
  std::map<std::string, std::vector<std::string>> branch_targets;

  // The statement that a label names for a statement within `scope`; -1: none.
  int64_t place(int scope, const std::string& label) const;
};

// A whole module. Bodies are parsed when they are asked for.
class Module {
 public:
  explicit Module(std::string text);

  const std::vector<Variable>& variables() const { return variables_; }
  const std::map<int, std::string>& files() const { return files_; }
  bool has(const std::string& function) const { return heads_.count(function) != 0; }
  const Function& head(const std::string& function) const { return heads_.at(function); }
  Function parse(const std::string& function) const;
  std::string_view line(int number) const;  // trimmed

 private:
  std::string text_;
  std::vector<Variable> variables_;
  std::map<int, std::string> files_;
  std::map<std::string, Function> heads_;
  std::map<std::string, std::pair<size_t, int>> bodies_;  // offset and line of the brace
};

}  // namespace ptx
