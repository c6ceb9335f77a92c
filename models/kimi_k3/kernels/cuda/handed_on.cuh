// What one product leaves for the next stage, for up to eight rows: tagged floats, in two parts where two blocks share
// a tile of it, added by whoever reads them. Nobody waits for more than the values that it needs.
#pragma once
#include "tagged_floats.cuh"

template <class Product, int COLUMNS>
struct HandedOn {
    static constexpr int kRows = 8;
    static constexpr int kPartCells = kRows * COLUMNS;
    static constexpr int kCells = (Product::kHalves ? 2 : 1) * kPartCells;

    unsigned long long* cells;

    __device__ void send(int row, int column, bool starts, float value, uint32_t epoch) const {
        ::send(cells + (starts ? 0 : kPartCells) + row * COLUMNS + column, value, epoch);
    }

    // COUNT values at once, whose loads wait together.
    template <int COUNT>
    __device__ void receive(
        const int (&rows)[COUNT], const int (&columns)[COUNT], float (&values)[COUNT], uint32_t epoch,
        unsigned long long* health) const {
        if constexpr (Product::kHalves) {
            const unsigned long long* from[2 * COUNT];
            float found[2 * COUNT];
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                from[i] = cells + rows[i] * COLUMNS + columns[i];
                from[COUNT + i] = from[i] + (Product::halved(columns[i]) ? kPartCells : 0);
            }
            receive_all(from, found, epoch, health);
#pragma unroll
            for (int i = 0; i < COUNT; ++i)
                values[i] = from[COUNT + i] == from[i] ? found[i] : found[i] + found[COUNT + i];
        } else {
            const unsigned long long* from[COUNT];
#pragma unroll
            for (int i = 0; i < COUNT; ++i) from[i] = cells + rows[i] * COLUMNS + columns[i];
            receive_all(from, values, epoch, health);
        }
    }
};
