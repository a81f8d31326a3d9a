// Which sanitizer this translation unit is built with: 1 or 0. GCC defines a macro, clang answers __has_feature.
#pragma once

#if defined(__has_feature)
#define MEGAMLA_CLANG_SANITIZER(name) __has_feature(name)
#else
#define MEGAMLA_CLANG_SANITIZER(name) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || MEGAMLA_CLANG_SANITIZER(address_sanitizer)
#define MEGAMLA_ADDRESS_SANITIZER 1
#else
#define MEGAMLA_ADDRESS_SANITIZER 0
#endif

#if defined(__SANITIZE_THREAD__) || MEGAMLA_CLANG_SANITIZER(thread_sanitizer)
#define MEGAMLA_THREAD_SANITIZER 1
#else
#define MEGAMLA_THREAD_SANITIZER 0
#endif
