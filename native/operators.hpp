// What joins two elements.
#pragma once

#include <type_traits>

namespace weft {

// Integers wrap around. That is defined for unsigned ones, of which the short ones would be
// promoted to int again.
template <class T, bool = std::is_integral_v<T>>
struct WrappingOf {
  using type = std::common_type_t<unsigned, std::make_unsigned_t<T>>;
};
template <class T>
struct WrappingOf<T, false> {
  using type = T;
};
template <class T>
using Wrapping = typename WrappingOf<T>::type;

template <class T>
struct Complex {
  T real, imaginary;
};

struct Sum {
  template <class T>
  static T apply(T a, T b) noexcept {
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  }
};

struct Product {
  template <class T>
  static T apply(T a, T b) noexcept {
    return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
  }
  template <class T>
  static Complex<T> apply(Complex<T> a, Complex<T> b) noexcept {
    return {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
  }
};

// Not-a-number wins, whichever side it is on.
struct Minimum {
  template <class T>
  static T apply(T a, T b) noexcept {
    return a < b || a != a ? a : b;
  }
};

struct Maximum {
  template <class T>
  static T apply(T a, T b) noexcept {
    return a > b || a != a ? a : b;
  }
};

struct And {
  template <class T>
  static T apply(T a, T b) noexcept {
    return static_cast<T>(a & b);
  }
};

struct Or {
  template <class T>
  static T apply(T a, T b) noexcept {
    return static_cast<T>(a | b);
  }
};

struct Xor {
  template <class T>
  static T apply(T a, T b) noexcept {
    return static_cast<T>(a ^ b);
  }
};

template <class T>
inline constexpr bool kIsComplex = false;
template <class T>
inline constexpr bool kIsComplex<Complex<T>> = true;

template <class Op, class T>
T combine(T a, T b) noexcept {
  if constexpr (std::is_arithmetic_v<T> || kIsComplex<T>) {
    return Op::apply(a, b);
  } else {
    return T::from(Op::apply(static_cast<float>(a), static_cast<float>(b)));
  }
}

}  // namespace weft
