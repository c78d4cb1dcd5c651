// Assertions for the native tests. A test is a program: it exits 0 or says where it failed.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

// Every wait of a test has a deadline of its own; this one ends the program if one of them fails
// to: nothing here takes more than seconds, even under a sanitizer on a busy machine.
inline const unsigned kWatchdog = ::alarm(120);

// At once: other threads may still run, and ending in order (a search for leaks among it) would
// have to wait for them.
#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::_Exit(1);                                                                 \
    }                                                                                \
  } while (false)

#define CHECK_THROWS(expression, Exception)                 \
  do {                                                      \
    bool thrown = false;                                    \
    try {                                                   \
      (void)(expression);                                   \
    } catch (const Exception&) {                            \
      thrown = true;                                        \
    }                                                       \
    CHECK(thrown && "throws " #Exception ": " #expression); \
  } while (false)
