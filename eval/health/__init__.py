"""Tier `health`: what moves inside the model while it trains, every few steps, at a cost that nobody notices.

`layers`: gradients, weights and updates of each layer, from copies of the parameters; `probe`: activations and attention on a
small fixed batch; `losses`: level, spread and spikes of the loss; `histogram`: counts in fixed buckets.
"""
