#include "reference/decode_attention.hpp"

#include "reference/attention_rows.hpp"

namespace megamla::reference {

Status decode_attention(const megamla_decode_attention_params& p, const megamla_exec& exec) {
  return attention_rows(view_of(p), exec);
}

}  // namespace megamla::reference
