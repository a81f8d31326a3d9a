// megamla make-layer: seeded weights as a checkpoint folder.
#include <fmt/format.h>

#include <memory>

#include "command.hpp"
#include "io/checkpoint.hpp"

namespace megamla::app {

Command make_layer_command() {
  struct Options {
    std::vector<int64_t> layers;
    std::string out;
    uint64_t seed = 4101;
  };
  Command command;
  command.summary = "Write attention layers with seeded weights as a checkpoint folder";
  command.examples =
      "The folder has config.json, one shard a layer and their index, with the tensor names, dtypes and shapes of "
      "DeepSeek-V4.1-Flash.\n"
      "\n"
      "Examples:\n"
      "  megamla make-layer --layers 2,20 --out /tmp/checkpoint\n"
      "  megamla inspect /tmp/checkpoint";
  command.add = [](CLI::App& app) -> std::function<int()> {
    auto o = std::make_shared<Options>();
    app.add_option("--layers", o->layers, "Layer ids, 0 .. 42")->delimiter(',')->required();
    app.add_option("--out", o->out, "Folder to write; layers that it holds already stay")->required();
    app.add_option("--seed", o->seed, "Seed of the weights")->capture_default_str();
    return [o] {
      const Status status = io::write_seeded_checkpoint(io::deepseek_v41_flash(), o->layers, o->seed, o->out);
      if (!status.ok()) throw InputError(status.message());
      fmt::print("{}: wrote {} layer{}\n", o->out, o->layers.size(), o->layers.size() == 1 ? "" : "s");
      return int{kOk};
    };
  };
  return command;
}

}  // namespace megamla::app
