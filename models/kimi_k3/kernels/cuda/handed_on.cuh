// What one product leaves for the next stage, for the rows of a launch: tagged floats, in two parts where two blocks share a
// tile of it, for each span of k that a team divides among its blocks; added by whoever reads them. Nobody waits for more than
// the values that it needs.
#pragma once
#include "tagged_floats.cuh"

template <class Product, int COLUMNS>
struct HandedOn {
    static constexpr int kPartCells = Product::kRows * COLUMNS;
    static constexpr int kSpanCells = (Product::kHalves ? 2 : 1) * kPartCells;
    static constexpr int kCells = Product::kSpans * kSpanCells;
    static_assert(Product::kHalves || Product::kSpans == 1, "whole tiles are of one span");

    unsigned long long* cells;

    __device__ void send(int row, int column, bool starts, float value, uint32_t epoch) const {
        ::send(cells + Product::span() * kSpanCells + (starts ? 0 : kPartCells) + row * COLUMNS + column, value, epoch);
    }

    // COUNT values at once, whose loads wait together.
    template <int COUNT>
    __device__ void receive(
        const int (&rows)[COUNT], const int (&columns)[COUNT], float (&values)[COUNT], uint32_t epoch,
        unsigned long long* health) const {
        if constexpr (Product::kHalves) {
            constexpr int kParts = 2 * Product::kSpans;
            const unsigned long long* from[kParts * COUNT];
            float found[kParts * COUNT];
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                from[i] = cells + rows[i] * COLUMNS + columns[i];
                from[COUNT + i] = from[i] + (Product::halved(columns[i]) ? kPartCells : 0);
            }
            // Spans are cut alike.
#pragma unroll
            for (int i = 2 * COUNT; i < kParts * COUNT; ++i) from[i] = from[i - 2 * COUNT] + kSpanCells;
            receive_all(from, found, epoch, health);
#pragma unroll
            for (int span = 0; span < Product::kSpans; ++span)
#pragma unroll
                for (int i = 0; i < COUNT; ++i) {
                    const int one = 2 * span * COUNT + i, other = one + COUNT;
                    const float sum = from[other] == from[one] ? found[one] : found[one] + found[other];
                    values[i] = span ? values[i] + sum : sum;
                }
        } else {
            const unsigned long long* from[COUNT];
#pragma unroll
            for (int i = 0; i < COUNT; ++i) from[i] = cells + rows[i] * COLUMNS + columns[i];
            receive_all(from, values, epoch, health);
        }
    }
};
