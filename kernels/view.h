// Non-owning strided views. The last dimension is contiguous unless an op says otherwise; strides
// count elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "kernels/dtype.h"

namespace strata {

template <class T, int R>
struct View {
  T* data = nullptr;
  int64_t shape[R] = {};
  int64_t stride[R] = {};

  STRATA_HD int64_t dim(int d) const { return shape[d]; }
  STRATA_HD bool empty() const {
    for (int d = 0; d < R; ++d)
      if (shape[d] == 0) return true;
    return false;
  }
  STRATA_HD T& operator()(int64_t i) const requires(R == 1) { return data[i * stride[0]]; }
  STRATA_HD T& operator()(int64_t i, int64_t j) const requires(R == 2) {
    return data[i * stride[0] + j * stride[1]];
  }
  STRATA_HD T& operator()(int64_t i, int64_t j, int64_t k) const requires(R == 3) {
    return data[i * stride[0] + j * stride[1] + k * stride[2]];
  }
  // Pointer to the start of row i of the first dimension.
  STRATA_HD T* row(int64_t i) const { return data + i * stride[0]; }
  // Rows [begin, end) of the first dimension.
  View Rows(int64_t begin, int64_t end) const {
    View part = *this;
    part.data = data + begin * stride[0];
    part.shape[0] = end - begin;
    return part;
  }
  // Columns [begin, end) of the last dimension.
  View Columns(int64_t begin, int64_t end) const {
    View part = *this;
    part.data = data + begin * stride[R - 1];
    part.shape[R - 1] = end - begin;
    return part;
  }
  operator View<const T, R>() const requires(!std::is_const_v<T>) {
    View<const T, R> copy;
    copy.data = data;
    for (int d = 0; d < R; ++d) copy.shape[d] = shape[d], copy.stride[d] = stride[d];
    return copy;
  }
};

// A dense row-major view over `data`.
template <class T, int R>
View<T, R> MakeView(T* data, const int64_t (&shape)[R]) {
  View<T, R> view;
  view.data = data;
  int64_t step = 1;
  for (int d = R - 1; d >= 0; --d) {
    view.shape[d] = shape[d];
    view.stride[d] = step;
    step *= shape[d];
  }
  return view;
}

// A view whose element type is data: what an op that accepts several storage types declares.
template <int R>
struct AnyView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t shape[R] = {};
  int64_t stride[R] = {};

  AnyView() = default;
  AnyView(const View<const float, R>& view) : data(view.data), dtype(DType::kF32) { Copy(view); }
  AnyView(const View<float, R>& view) : data(view.data), dtype(DType::kF32) { Copy(view); }
  AnyView(const void* base, DType type, const int64_t (&dims)[R]) : data(base), dtype(type) {
    int64_t step = 1;
    for (int d = R - 1; d >= 0; --d) {
      shape[d] = dims[d];
      stride[d] = step;
      step *= dims[d];
    }
  }
  STRATA_HD int64_t dim(int d) const { return shape[d]; }

 private:
  template <class V>
  void Copy(const V& view) {
    for (int d = 0; d < R; ++d) shape[d] = view.shape[d], stride[d] = view.stride[d];
  }
};

// A size that several views of one op must agree on. The first view binds it, a later one that
// differs is refused.
struct Dim {
  const char* name;
  int64_t value = -1;
};

// Checks a view's shape against named sizes; Fail(kShape) names op, view, dimension and both
// values.
void MatchShape(const char* op, const char* view, const int64_t* shape,
                std::initializer_list<Dim*> dims);

template <class V>
void Match(const char* op, const char* name, const V& view, std::initializer_list<Dim*> dims) {
  MatchShape(op, name, view.shape, dims);
}

}  // namespace strata
