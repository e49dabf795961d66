"""MQTT sessions: who is connected, what is resumed, what ends when."""
