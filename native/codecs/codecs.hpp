// Codecs by the names of codec and dtype.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "codecs/blocks.hpp"
#include "codecs/frame.hpp"
#include "codecs/narrow.hpp"
#include "codecs/pack.hpp"

namespace weft {

// A codec without a parameter, seen as one that has one.
template <class C>
Codec without_parameter(std::size_t item_bytes) {
  Codec codec;
  codec.item_bytes = item_bytes;
  codec.worst = [](std::size_t nbytes, std::size_t) noexcept { return C::worst(nbytes); };
  codec.encode = [](Bytes src, Bytes out, std::size_t) noexcept { return C::encode(src, out); };
  codec.decode = [](Bytes from, Bytes dst, std::size_t) noexcept { return C::decode(from, dst); };
  return codec;
}

template <class T, int kBits>
Codec blocks_of() {
  using C = Blocks<T, kBits>;
  Codec codec;
  codec.item_bytes = sizeof(T);
  codec.worst = &C::worst;
  codec.encode = &C::encode;
  codec.decode = &C::decode;
  return codec;
}

enum class Float : std::uint8_t { none, float32, bfloat16, float16 };

inline Float float_of(std::string_view dtype) noexcept {
  if (dtype == "float32") return Float::float32;
  if (dtype == "bfloat16") return Float::bfloat16;
  if (dtype == "float16") return Float::float16;
  return Float::none;
}

template <template <class> class Make>
Codec of_float(Float dtype) {
  switch (dtype) {
    case Float::float32: return Make<Plain>::codec();
    case Float::bfloat16: return Make<Brain>::codec();
    default: return Make<Half>::codec();
  }
}

template <class T> struct FieldsOf {
  using type = Single;
};
template <> struct FieldsOf<Brain> {
  using type = BrainFields;
};
template <> struct FieldsOf<Half> {
  using type = HalfFields;
};

template <class T> struct MakePack {
  static Codec codec() {
    using P = Pack<typename FieldsOf<T>::type>;
    Codec codec = without_parameter<P>(sizeof(T));
    codec.decode_unsized = [](Bytes from, Bytes dst, std::size_t) noexcept {
      return P::decode_blocks(from, dst);
    };
    return codec;
  }
};
template <class T> struct MakeInt8 {
  static Codec codec() { return blocks_of<T, 8>(); }
};
template <class T> struct MakeInt4 {
  static Codec codec() { return blocks_of<T, 4>(); }
};
template <class T> struct MakeFp8 {
  static Codec codec() { return without_parameter<Narrow<T, Float8E5M2>>(sizeof(T)); }
};
// To a type that is no narrower there is nothing to do.
template <class To> struct MakeNarrow {
  static Codec codec(Float dtype) {
    return dtype == Float::float32 ? without_parameter<Narrow<Plain, To>>(sizeof(float)) : Codec{};
  }
};

enum class CodecNumber : std::uint8_t { none, pack, bf16, fp16, fp8, int8, int4 };

inline std::uint16_t block_of(std::string_view text, std::uint16_t usual) {
  if (text.empty()) return usual;
  unsigned block = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), block);
  const bool read = error == std::errc{} && end == text.data() + text.size();
  if (!read || block < kLeastBlock || block > kMostBlock) {
    throw std::invalid_argument("a block has " + std::to_string(kLeastBlock) + " to " +
                                std::to_string(kMostBlock) + " values, not '" + std::string(text) + "'");
  }
  return static_cast<std::uint16_t>(block);
}

// ``name`` is "pack" or "int8:256": what is behind the colon is the codec's block.
inline Codec codec_of(std::string_view name, std::string_view dtype) {
  const std::size_t colon = name.find(':');
  const std::string_view kind = name.substr(0, colon);
  const std::string_view rest = colon == name.npos ? "" : name.substr(colon + 1);
  const Float values = float_of(dtype);
  const auto numbered = [&](Codec codec, CodecNumber number, std::uint16_t parameter = 0) {
    codec.number = static_cast<std::uint8_t>(number);
    codec.dtype = static_cast<std::uint8_t>(values);
    codec.parameter = parameter;
    return codec;
  };
  if (kind == "none" && colon == name.npos) return numbered({}, CodecNumber::none);
  if (values == Float::none) {
    throw std::invalid_argument("codec '" + std::string(name) +
                                "' is for float32, bfloat16 and float16, not " + std::string(dtype));
  }
  if (kind == "int8") return numbered(of_float<MakeInt8>(values), CodecNumber::int8, block_of(rest, 256));
  if (kind == "int4") return numbered(of_float<MakeInt4>(values), CodecNumber::int4, block_of(rest, 64));
  if (colon == name.npos) {
    if (kind == "pack") return numbered(of_float<MakePack>(values), CodecNumber::pack);
    if (kind == "fp8") return numbered(of_float<MakeFp8>(values), CodecNumber::fp8);
    if (kind == "bf16") return numbered(MakeNarrow<Brain>::codec(values), CodecNumber::bf16);
    if (kind == "fp16") return numbered(MakeNarrow<Half>::codec(values), CodecNumber::fp16);
  }
  throw std::invalid_argument("no codec is called '" + std::string(name) + "'");
}

}  // namespace weft
