// From statements to instructions: registers get rows, labels get places, called functions are laid behind the kernel.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "binder.hpp"

namespace ptx {

Run call_run();
Run return_run();
Run exit_run();
Run copy_param_run();
Run indexed_branch_run();

namespace {

constexpr uint32_t kRowBytes = 4 * kLanes;

int64_t aligned(int64_t at, int64_t alignment) { return (at + alignment - 1) / alignment * alignment; }

void unsupported(Warp& w, const Instruction& in) { w.fail("not supported by the interpreter: " + in.extra->text); }

bool is_wide(Type t) { return bytes_of(t) == 8; }

}  // namespace

class Assembler {
 public:
  using Variables = std::function<void*(const std::string&)>;
  Assembler(Program& program, const Variables& variables) : p_(program), variables_(variables) {}

  void run(const std::string& kernel) {
    add_function(kernel);
    // Functions are added while others are laid down.
    for (size_t i = 0; i < order_.size(); ++i) lay(frames_.at(order_[i]));
    for (const auto& [pc, name] : calls_) p_.code[pc].target = frames_.at(name).entry;
    Statement end;
    end.opcode = "end of the program";
    emit(end, "").run = &unsupported;
    place_constants();
    p_.dynamic_begin = static_cast<uint32_t>(aligned(p_.static_shared, dynamic_alignment_));
    p_.local_bytes = static_cast<uint32_t>(aligned(p_.local_bytes, 16));
  }

 private:
  friend class Binder;

  struct Place {
    Space space;
    int64_t offset;
  };
  struct Frame {
    Function function;
    std::vector<Slot> registers;
    std::map<std::string, Place> symbols;
    uint32_t entry = 0;
    Slot back;  // where to return to
  };

  Slot new_row(bool wide) {
    Slot s;
    s.wide = wide;
    s.offset = p_.register_bytes;
    p_.register_bytes += wide ? 2 * kRowBytes : kRowBytes;
    return s;
  }
  Slot new_predicate() {
    if (predicates_.offset == predicate_end_) {
      predicates_ = new_row(false);
      predicate_end_ = predicates_.offset + kRowBytes;
    }
    Slot s;
    s.offset = predicates_.offset;
    predicates_.offset += 4;
    return s;
  }
  int64_t lane_bytes(int64_t bytes, int64_t alignment) {
    const int64_t at = aligned(p_.local_bytes, alignment);
    p_.local_bytes = static_cast<uint32_t>(at + bytes);
    return at;
  }

  void add_function(const std::string& name) {
    if (frames_.count(name) != 0) return;
    Frame& f = frames_[name];
    f.function = p_.module->parse(name);
    for (const Type t : f.function.registers) {
      f.registers.push_back(t == Type::kPred ? new_predicate() : new_row(is_wide(t)));
    }
    if (f.function.is_entry) {
      set_params(f);
    } else {
      for (const Variable& v : f.function.params) f.symbols[v.name] = {Space::kLocal, lane_bytes(v.bytes, v.align)};
      for (const Variable& v : f.function.results) f.symbols[v.name] = {Space::kLocal, lane_bytes(v.bytes, v.align)};
      f.back = new_row(false);
    }
    for (const Variable& v : f.function.variables) {
      if (v.space == Space::kShared) {
        f.symbols[v.name] = {Space::kShared, static_shared(v)};
      } else {
        f.symbols[v.name] = {Space::kLocal, lane_bytes(v.bytes, std::max<int64_t>(v.align, 8))};
      }
    }
    order_.push_back(name);
  }
  void set_params(Frame& f) {
    int64_t at = 0;
    for (const Variable& v : f.function.params) {
      at = aligned(at, v.align);
      f.symbols[v.name] = {Space::kParam, at};
      p_.params.push_back(v);
      p_.param_offsets.push_back(at);
      at += v.bytes;
    }
    p_.param_bytes = at;
    if (f.function.max_threads != 0) p_.max_threads = f.function.max_threads;
    p_.exact_threads = f.function.exact_threads;
  }
  int64_t static_shared(const Variable& v) {
    const int64_t at = aligned(p_.static_shared, v.align);
    p_.static_shared = static_cast<uint32_t>(at + v.bytes);
    return at;
  }

  void lay(Frame& f) {
    frame_ = &f;
    f.entry = static_cast<uint32_t>(p_.code.size());
    std::vector<uint32_t> places;  // of each statement
    for (const Statement& s : f.function.body) {
      places.push_back(static_cast<uint32_t>(p_.code.size()));
      lay(s);
    }
    Statement end;
    end.opcode = f.function.is_entry ? "exit" : "ret";
    places.push_back(static_cast<uint32_t>(p_.code.size()));
    lay(end);
    for (const auto& [pc, statement] : branches_) {
      const Operand& o = statement->operands.at(0);
      p_.code[pc].target = places.at(place_of(f, *statement, o.name));
    }
    for (const auto& [pc, statement] : indexed_) {
      for (const std::string& label : f.function.branch_targets.at(statement->operands.at(1).name)) {
        const uint32_t target = places.at(place_of(f, *statement, label));
        p_.code[pc].extra->text.append(reinterpret_cast<const char*>(&target), 4);
      }
    }
    branches_.clear();
    indexed_.clear();
  }
  static size_t place_of(const Frame& f, const Statement& s, const std::string& label) {
    const int64_t at = f.function.place(s.scope, label);
    if (at < 0) throw std::runtime_error(fmt::format("PTX line {}: no label {}", s.line, label));
    return static_cast<size_t>(at);
  }

  Instruction& emit(const Statement& s, const std::string& text) {
    Instruction in;
    if (s.guard >= 0) {
      in.guarded = true;
      in.guard = frame_->registers[static_cast<size_t>(s.guard)].offset;
      in.guard_negated = s.guard_negated;
    }
    if (!text.empty() || s.opcode == "end of the program") {
      p_.extras.emplace_back();
      p_.extras.back().text = text.empty() ? s.opcode : text;
      in.extra = &p_.extras.back();
    }
    p_.code.push_back(in);
    p_.locations.push_back({s.line, s.source_file, s.source_line});
    return p_.code.back();
  }

  void lay(const Statement& s) {
    const std::string_view op = std::string_view(s.opcode).substr(0, s.opcode.find('.'));
    if (op == "call") return lay_call(s);
    if (op == "ret") {
      Instruction& in = emit(s, "");
      in.run = frame_->function.is_entry ? exit_run() : return_run();
      in.a = frame_->back;
      return;
    }
    if (op == "bra") branches_.emplace_back(p_.code.size(), &s);
    if (op == "brx") indexed_.emplace_back(p_.code.size(), &s);
    Instruction in = emit(s, "");
    std::string why;
    try {
      Binder binder(*this, s, in);
      static constexpr Bind kAll[] = {bind_integer, bind_bits,  bind_float,  bind_half,    bind_compare,
                                      bind_convert, bind_move,  bind_memory, bind_control, bind_warp,
                                      bind_barrier, bind_async, bind_matrix, bind_wgmma};
      const bool bound = std::any_of(std::begin(kAll), std::end(kAll), [&](Bind bind) { return bind(binder); });
      if (!bound) why = s.opcode;
    } catch (const std::exception& error) {
      why = s.opcode + ": " + error.what();
    }
    if (!why.empty()) {
      if (in.extra == nullptr) in.extra = &p_.extras.emplace_back();
      in.extra->text = why;
      in.run = &unsupported;
    }
    p_.code.back() = in;
  }

  // call [(results),] function [, (params)];
  void lay_call(const Statement& s) {
    const auto name = std::find_if(s.operands.begin(), s.operands.end(),
                                   [](const Operand& o) { return o.kind == Operand::Kind::kSymbol; });
    if (name == s.operands.end() || !p_.module->has(name->name)) {
      emit(s, "call of an unknown function").run = &unsupported;
      return;
    }
    const std::string callee = name->name;
    add_function(callee);
    Frame& to = frames_.at(callee);
    const auto copies = [&](const std::vector<Variable>& formal, const Operand& actual, bool in) {
      for (size_t i = 0; i < formal.size(); ++i) {
        const int64_t inner = to.symbols.at(formal[i].name).offset;
        const int64_t outer = frame_->symbols.at(actual.parts.at(i).name).offset;
        Instruction& copy = emit(s, "");
        copy.run = copy_param_run();
        copy.extra = &p_.extras.emplace_back();
        copy.extra->numbers[0] = in ? inner : outer;
        copy.extra->numbers[1] = in ? outer : inner;
        copy.extra->numbers[2] = formal[i].bytes;
      }
    };
    if (name + 1 != s.operands.end()) copies(to.function.params, *(name + 1), true);
    Instruction& in = emit(s, "");
    in.run = call_run();
    in.d = to.back;
    calls_.emplace_back(p_.code.size() - 1, callee);
    if (name != s.operands.begin()) copies(to.function.results, s.operands[0], false);
  }

  Place find_symbol(const std::string& name) {
    if (const auto found = frame_->symbols.find(name); found != frame_->symbols.end()) return found->second;
    if (const auto found = module_symbols_.find(name); found != module_symbols_.end()) return found->second;
    for (const Variable& v : p_.module->variables()) {
      if (v.name != name) continue;
      Place place{Space::kGlobal, 0};
      if (v.space == Space::kShared) {
        place.space = Space::kShared;
        place.offset = v.is_extern ? -1 : static_shared(v);
        if (v.is_extern) dynamic_alignment_ = std::max(dynamic_alignment_, v.align);
      } else {
        place.offset = static_cast<int64_t>(reinterpret_cast<intptr_t>(variables_(name)));
      }
      return module_symbols_[name] = place;
    }
    throw std::runtime_error("unknown symbol " + name);
  }

  Slot constant(uint64_t value, bool wide) {
    if (!wide) value &= 0xffffffff;
    const auto key = std::pair(value, wide);
    if (const auto found = constants_.find(key); found != constants_.end()) return found->second;
    Slot s;
    s.constant = true;
    s.wide = wide;
    s.offset = constant_bytes_;
    constant_bytes_ += wide ? 2 * kRowBytes : kRowBytes;
    return constants_[key] = s;
  }
  void place_constants() {
    p_.constants.resize(constant_bytes_ + 64);
    uint8_t* base = p_.constants.data() + (-reinterpret_cast<uintptr_t>(p_.constants.data()) & 63);
    for (const auto& [key, slot] : constants_) {
      for (int i = 0; i < kLanes; ++i) {
        if (slot.wide)
          std::memcpy(base + slot.offset + 8 * i, &key.first, 8);
        else
          std::memcpy(base + slot.offset + 4 * i, &key.first, 4);
      }
    }
  }

  Slot special(SpecialKind kind, uint32_t value, bool wide) {
    for (const Special& s : p_.specials) {
      if (s.kind == kind && s.value == value && s.slot.wide == wide) return s.slot;
    }
    p_.specials.push_back({kind, value, new_row(wide)});
    return p_.specials.back().slot;
  }

  Program& p_;
  const Variables& variables_;
  std::map<std::string, Frame> frames_;
  std::vector<std::string> order_;
  Frame* frame_ = nullptr;
  std::map<std::string, Place> module_symbols_;
  std::vector<std::pair<size_t, const Statement*>> branches_, indexed_;
  std::vector<std::pair<size_t, std::string>> calls_;
  std::map<std::pair<uint64_t, bool>, Slot> constants_;
  uint32_t constant_bytes_ = 0;
  Slot predicates_;
  uint32_t predicate_end_ = 0;
  int64_t dynamic_alignment_ = 16;
};

namespace {

constexpr std::pair<std::string_view, SpecialKind> kSpecials[] = {
    {"%laneid", SpecialKind::kLane},
    {"%tid.x", SpecialKind::kTidX},
    {"%tid.y", SpecialKind::kTidY},
    {"%tid.z", SpecialKind::kTidZ},
    {"%ntid.x", SpecialKind::kNtidX},
    {"%ntid.y", SpecialKind::kNtidY},
    {"%ntid.z", SpecialKind::kNtidZ},
    {"%ctaid.x", SpecialKind::kCtaX},
    {"%ctaid.y", SpecialKind::kCtaY},
    {"%ctaid.z", SpecialKind::kCtaZ},
    {"%nctaid.x", SpecialKind::kNctaX},
    {"%nctaid.y", SpecialKind::kNctaY},
    {"%nctaid.z", SpecialKind::kNctaZ},
    {"%warpid", SpecialKind::kWarp},
    {"%nwarpid", SpecialKind::kNwarp},
    {"%clusterid.x", SpecialKind::kClusterX},
    {"%clusterid.y", SpecialKind::kClusterY},
    {"%clusterid.z", SpecialKind::kClusterZ},
    {"%nclusterid.x", SpecialKind::kNclusterX},
    {"%nclusterid.y", SpecialKind::kNclusterY},
    {"%nclusterid.z", SpecialKind::kNclusterZ},
    {"%cluster_ctaid.x", SpecialKind::kClusterCtaX},
    {"%cluster_ctaid.y", SpecialKind::kClusterCtaY},
    {"%cluster_ctaid.z", SpecialKind::kClusterCtaZ},
    {"%cluster_nctaid.x", SpecialKind::kClusterNctaX},
    {"%cluster_nctaid.y", SpecialKind::kClusterNctaY},
    {"%cluster_nctaid.z", SpecialKind::kClusterNctaZ},
    {"%cluster_ctarank", SpecialKind::kClusterRank},
    {"%cluster_nctarank", SpecialKind::kClusterSize},
    {"%lanemask_eq", SpecialKind::kLaneEq},
    {"%lanemask_le", SpecialKind::kLaneLe},
    {"%lanemask_lt", SpecialKind::kLaneLt},
    {"%lanemask_ge", SpecialKind::kLaneGe},
    {"%lanemask_gt", SpecialKind::kLaneGt},
    {"%smid", SpecialKind::kSm},
    {"%nsmid", SpecialKind::kNsm},
    {"WARP_SZ", SpecialKind::kWarpSize},
    {"%dynamic_smem_size", SpecialKind::kDynamicSharedBytes},
    {"%total_smem_size", SpecialKind::kTotalSharedBytes},
    {"%gridid", SpecialKind::kGridId},
    {"%clock", SpecialKind::kZero},
    {"%clock64", SpecialKind::kZero},
    {"%globaltimer", SpecialKind::kZero},
    {"%globaltimer_lo", SpecialKind::kZero}};

SpecialKind special_of(std::string_view name) {
  for (const auto& [text, kind] : kSpecials) {
    if (text == name) return kind;
  }
  throw std::runtime_error("unknown register " + std::string(name));
}

}  // namespace

Binder::Binder(Assembler& assembler, const Statement& s, Instruction& instruction)
    : statement(s), in(instruction), assembler_(assembler) {
  std::string_view rest = s.opcode;
  while (!rest.empty()) {
    const size_t dot = rest.find('.');
    parts.push_back(rest.substr(0, dot));
    rest = dot == std::string_view::npos ? std::string_view() : rest.substr(dot + 1);
    if (const Type t = type_of(parts.back()); t != Type::kNone) type = t;
  }
}

bool Binder::has(std::string_view part) const { return std::find(parts.begin() + 1, parts.end(), part) != parts.end(); }

std::vector<Type> Binder::types() const {
  std::vector<Type> all;
  for (const std::string_view part : parts) {
    if (const Type t = type_of(part); t != Type::kNone) all.push_back(t);
  }
  return all;
}

Slot Binder::read(const Operand& o, bool wide) const {
  switch (o.kind) {
    case Operand::Kind::kRegister: {
      const Slot s = assembler_.frame_->registers[static_cast<size_t>(o.reg)];
      if (s.wide != wide) throw std::runtime_error("a register of another width");
      return s;
    }
    case Operand::Kind::kImmediate:
      return assembler_.constant(o.value, wide);
    case Operand::Kind::kSpecial:
      return assembler_.special(special_of(o.name), 0, wide);
    case Operand::Kind::kSymbol: {
      const Assembler::Place place = assembler_.find_symbol(o.name);
      if (place.space != Space::kShared)
        return assembler_.constant(static_cast<uint64_t>(place.offset) + o.value, wide);
      // The dynamic part (-1) begins where the static one ends: known when all is laid.
      if (place.offset >= 0) {
        return assembler_.special(SpecialKind::kSharedAddress, static_cast<uint32_t>(place.offset + o.value), wide);
      }
      return assembler_.special(SpecialKind::kDynamicShared, static_cast<uint32_t>(o.value), wide);
    }
    default:
      throw std::runtime_error("an operand of an unexpected kind");
  }
}

Slot Binder::any_width(const Operand& o) const {
  if (o.kind != Operand::Kind::kRegister) return read(o, true);
  return assembler_.frame_->registers[static_cast<size_t>(o.reg)];
}

Slot Binder::write(const Operand& o) const {
  Slot s;
  s.sink = true;
  if (o.kind == Operand::Kind::kSink) return s;
  if (o.kind != Operand::Kind::kRegister) throw std::runtime_error("expected a register to write to");
  return assembler_.frame_->registers[static_cast<size_t>(o.reg)];
}

Slot Binder::predicate(const Operand& o) const {
  if (o.kind == Operand::Kind::kImmediate) return assembler_.constant(o.value != 0 ? ~uint64_t{0} : 0, false);
  Slot s = write(o);
  s.negated = o.negated;
  return s;
}

bool Binder::is_predicate(const Operand& o) const {
  return assembler_.frame_->function.registers[static_cast<size_t>(o.reg)] == Type::kPred;
}

std::vector<Slot> Binder::list(const Operand& o, bool wide) const {
  if (o.kind != Operand::Kind::kVector) return {read(o, wide)};
  std::vector<Slot> all;
  for (const Operand& part : o.parts) all.push_back(read(part, wide));
  return all;
}

Extra& Binder::extra() const {
  if (in.extra == nullptr) in.extra = &assembler_.p_.extras.emplace_back();
  return *in.extra;
}

void Binder::address(const Operand& o) const {
  if (o.kind != Operand::Kind::kAddress) throw std::runtime_error("expected an address");
  in.a.sink = true;
  in.value = static_cast<int64_t>(o.value);
  if (o.reg >= 0) {
    in.a = assembler_.frame_->registers[static_cast<size_t>(o.reg)];
  } else if (!o.name.empty()) {
    const Assembler::Place place = assembler_.find_symbol(o.name);
    if (place.space == Space::kShared) {
      Operand symbol;
      symbol.kind = Operand::Kind::kSymbol;
      symbol.name = o.name;
      in.a = read(symbol, false);
    } else {
      in.value += place.offset;
    }
  }
}

Space Binder::symbol_space(const Operand& o) const {
  if (o.name.empty()) return assembler_.frame_->function.is_entry ? Space::kParam : Space::kLocal;
  return assembler_.find_symbol(o.name).space;
}

bool Binder::plain(size_t count, bool wide) const {
  if (operands() < count) throw std::runtime_error("fewer operands than expected");
  in.d = write(operand(0));
  if (!in.d.sink && in.d.wide != wide) throw std::runtime_error("a register of another width");
  in.a = read(operand(1), wide);
  if (count > 2) in.b = read(operand(2), wide);
  if (count > 3) in.c = read(operand(3), wide);
  return true;
}

std::shared_ptr<const Program> assemble(std::shared_ptr<const Module> module, const std::string& kernel,
                                        const std::function<void*(const std::string&)>& variable) {
  auto program = std::make_shared<Program>();
  program->name = kernel;
  program->module = std::move(module);
  Assembler(*program, variable).run(kernel);
  return program;
}

}  // namespace ptx
