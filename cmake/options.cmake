# Flags of MegaMLA's own targets: an interface library, never installed.
add_library(megamla_options INTERFACE)
target_compile_options(
  megamla_options
  INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast>
            $<$<AND:$<BOOL:${MEGAMLA_WERROR}>,$<COMPILE_LANGUAGE:CXX>>:-Werror>
            # Rounded results are part of the contract: a product and a sum fuse only where the source says std::fma.
            $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
            # src/format is one definition for host and device and uses std::bit_cast.
            $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
# GCC 12 believes that comparing two std::vector<uint8_t> may read past 2^63 bytes.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(megamla_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-stringop-overread>)
endif()
if(MEGAMLA_SANITIZE)
  target_compile_options(megamla_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${MEGAMLA_SANITIZE}
                                                   -fno-sanitize-recover=all -fno-omit-frame-pointer>)
  # GCC sees uninitialised variables in the standard library's code once it is instrumented; release builds judge that.
  target_compile_options(megamla_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  target_link_options(megamla_options INTERFACE -fsanitize=${MEGAMLA_SANITIZE})
endif()
