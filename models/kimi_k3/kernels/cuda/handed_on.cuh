// What one product leaves for the next stage, for the rows of a launch: tagged floats, in two parts where two blocks
// share a tile of it, for each span of k that a team divides among its blocks; added by whoever reads them. Nobody waits
// for more than the values that it needs.
#pragma once
#include "tagged_floats.cuh"

template <class Product, int COLUMNS>
struct HandedOn {
    static constexpr int kPartCells = Product::kRows * COLUMNS;
    static constexpr int kPartsOfSpan = Product::kHalves ? 2 : 1;
    static constexpr int kSpanCells = kPartsOfSpan * kPartCells;
    static constexpr int kCells = Product::kSpans * kSpanCells;

    unsigned long long* cells;

    __device__ void send(int row, int column, bool starts, float value, uint32_t epoch) const {
        ::send(cells + Product::span() * kSpanCells + (starts ? 0 : kPartCells) + row * COLUMNS + column, value, epoch);
    }

    // COUNT values at once, whose loads wait together.
    template <int COUNT>
    __device__ void receive(
        const int (&rows)[COUNT], const int (&columns)[COUNT], float (&values)[COUNT], uint32_t epoch,
        unsigned long long* health) const {
        constexpr int kEach = kPartsOfSpan * COUNT, kAll = Product::kSpans * kEach;
        const unsigned long long* from[kAll];
        float found[kAll];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            from[i] = cells + rows[i] * COLUMNS + columns[i];
            if constexpr (Product::kHalves) from[COUNT + i] = from[i] + (Product::halved(columns[i]) ? kPartCells : 0);
        }
        // Spans are cut alike.
#pragma unroll
        for (int i = kEach; i < kAll; ++i) from[i] = from[i - kEach] + kSpanCells;
        receive_all(from, found, epoch, health);
#pragma unroll
        for (int span = 0; span < Product::kSpans; ++span)
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const int one = span * kEach + i;
                float sum = found[one];
                if constexpr (Product::kHalves)
                    if (from[one + COUNT] != from[one]) sum += found[one + COUNT];
                values[i] = span ? values[i] + sum : sum;
            }
    }
};
