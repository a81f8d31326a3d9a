#include "layer_call.hpp"

#include "gpu.hpp"

namespace megamla::app {

LayerCall::LayerCall(const megamla_forward_params& call, Arena& arena) : params_(call) {
  megamla_forward_params& p = params_;
  if (arena.cuda_device() >= 0) p.side_stream = gpu::side_stream();
  for (megamla_tensor* t : {&p.x, &p.y, &p.cos_sin, &p.compressor_state}) arena.place(*t);
  arena.place(p.window);
  arena.place(p.compressed);
  if (call.metadata != nullptr) {
    megamla_step_metadata& m = metadata_ = *call.metadata;
    // The CPU plans from the lists as they are now.
    m.host_query_start_loc = on_host(m.query_start_loc);
    m.host_seq_lens = on_host(m.seq_lens);
    for (megamla_tensor* t : {&m.query_start_loc, &m.seq_lens, &m.positions, &m.slot_mapping, &m.window_table,
                              &m.compressed_slot_mapping, &m.compressed_table, &m.state_block, &m.topk})
      arena.place(*t);
    p.metadata = &metadata_;
  }
  if (call.taps != nullptr) {
    megamla_layer_taps& t = taps_ = *call.taps;
    for (megamla_tensor* tap : {&t.qr, &t.latent, &t.compressed_latent, &t.q, &t.lse, &t.pair, &t.pair_scale, &t.z})
      arena.place(*tap);
    p.taps = &taps_;
  }
}

}  // namespace megamla::app
