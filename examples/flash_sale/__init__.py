"""A flash sale: stock in Redis, orders in a queue, payment, points and SMS, and a check that nothing went wrong."""
