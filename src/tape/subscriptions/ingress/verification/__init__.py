"""Where a delivery comes from: nothing of it is interpreted before that is proven."""
