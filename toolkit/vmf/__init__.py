"""The von Mises-Fisher distribution and its relatives in torch: densities, distances, draws."""
