"""MQTT subscriptions: requests, the queues and bindings behind them, and matching."""
