"""Which part of a parameter a rank holds."""
import numpy as np


def slice_of(whole, layout, rank_in_stage):
    matrix, tensor_map = layout[0], layout[1]
    place = []
    for size in reversed(matrix):
        place.append(rank_in_stage % size)
        rank_in_stage //= size
    for axis, m in enumerate(tensor_map):
        if m != -1:
            whole = np.split(whole, matrix[len(matrix) - 1 - m], axis)[place[m]]
    return whole
