// The assertions of the generated headers in this folder: a struct or constant of a kernel file is what its
// Rust file declares (src/layout.rs).
#pragma once

namespace layout {

template <typename T>
struct Element {
    using Type = T;
};
template <typename T, unsigned long long N>
struct Element<T[N]> : Element<T> {};

template <typename A, typename B>
constexpr bool SAME = false;
template <typename A>
constexpr bool SAME<A, A> = true;

template <typename T>
constexpr bool POINTER = false;
template <typename T>
constexpr bool POINTER<T*> = true;

}  // namespace layout

// NVRTC has no offsetof; this is the intrinsic that its front end defines offsetof with.
#define OFFSET_OF(name, field) __INTADDR__(&((name*)0)->field)

#define ASSERT_CONSTANT(name, value) static_assert((name) == (value), #name " has another value in Rust")

#define ASSERT_STRUCT(name, size) static_assert(sizeof(name) == (size), #name " has another size in Rust")

#define ASSERT_PLACE(name, field, offset, size)                                                         \
    static_assert(OFFSET_OF(name, field) == (offset), #name "::" #field " has another offset in Rust"); \
    static_assert(sizeof(name::field) == (size), #name "::" #field " has another size in Rust")

// A number, a struct, or an array of them.
#define ASSERT_FIELD(name, field, type, offset, size)                               \
    ASSERT_PLACE(name, field, offset, size);                                        \
    static_assert(layout::SAME<layout::Element<decltype(name::field)>::Type, type>, \
                  #name "::" #field " has another type in Rust")

// A pointer, or an array of them.
#define ASSERT_POINTER(name, field, offset, size)                                \
    ASSERT_PLACE(name, field, offset, size);                                     \
    static_assert(layout::POINTER<layout::Element<decltype(name::field)>::Type>, \
                  #name "::" #field " is a pointer in Rust")
