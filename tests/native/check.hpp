// Assertions for the native tests. A test is a program: it exits 0 or says where it failed.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                 \
    }                                                                               \
  } while (false)

#define CHECK_THROWS(expression, Exception)                    \
  do {                                                         \
    bool thrown = false;                                       \
    try {                                                      \
      (void)(expression);                                      \
    } catch (const Exception&) {                               \
      thrown = true;                                           \
    }                                                          \
    CHECK(thrown && "throws " #Exception ": " #expression);    \
  } while (false)
