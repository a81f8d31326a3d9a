// Turns a statement into an instruction: each ops_*.cpp offers a function that takes the opcodes of its kind.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lanes.hpp"

namespace ptx {

class Assembler;

class Binder {
 public:
  Binder(Assembler& assembler, const Statement& statement, Instruction& instruction);

  const Statement& statement;
  Instruction& in;
  std::vector<std::string_view> parts;  // of the opcode, split at dots
  Type type = Type::kNone;              // its last type

  std::string_view op() const { return parts[0]; }
  bool has(std::string_view part) const;
  std::vector<Type> types() const;  // all, in order
  size_t operands() const { return statement.operands.size(); }
  const Operand& operand(size_t i) const { return statement.operands[i]; }

  Slot read(const Operand& o, bool wide) const;  // a register, an immediate, a special register, an address of a symbol
  Slot any_width(const Operand& o) const;        // a register as wide as it is declared; an immediate has 64 bits
  Slot write(const Operand& o) const;
  Slot predicate(const Operand& o) const;
  bool is_predicate(const Operand& o) const;
  std::vector<Slot> list(const Operand& o, bool wide) const;  // of a vector, or of one register
  Extra& extra() const;
  void address(const Operand& o) const;  // in.a and in.value; the base may be absent
  Space symbol_space(const Operand& o) const;
  // d, a, b, c from operands 0 .. n-1, all as wide as `wide`.
  bool plain(size_t count, bool wide) const;

 private:
  Assembler& assembler_;
};

using Bind = bool (*)(Binder&);
bool bind_integer(Binder&);
bool bind_bits(Binder&);
bool bind_float(Binder&);
bool bind_half(Binder&);
bool bind_compare(Binder&);
bool bind_convert(Binder&);
bool bind_move(Binder&);
bool bind_memory(Binder&);
bool bind_control(Binder&);
bool bind_warp(Binder&);
bool bind_barrier(Binder&);
bool bind_async(Binder&);
bool bind_matrix(Binder&);
bool bind_wgmma(Binder&);

// The same template for every integer type; nullptr where it has none.
#define PTX_INTEGER_RUN(TEMPLATE, OP, TYPE) \
  [&]() -> Run {                            \
    switch (TYPE) {                         \
      case Type::kU16:                      \
      case Type::kB16:                      \
        return &TEMPLATE<OP, uint16_t>;     \
      case Type::kS16:                      \
        return &TEMPLATE<OP, int16_t>;      \
      case Type::kU32:                      \
      case Type::kB32:                      \
        return &TEMPLATE<OP, uint32_t>;     \
      case Type::kS32:                      \
        return &TEMPLATE<OP, int32_t>;      \
      case Type::kU64:                      \
      case Type::kB64:                      \
        return &TEMPLATE<OP, uint64_t>;     \
      case Type::kS64:                      \
        return &TEMPLATE<OP, int64_t>;      \
      default:                              \
        return nullptr;                     \
    }                                       \
  }()

}  // namespace ptx
