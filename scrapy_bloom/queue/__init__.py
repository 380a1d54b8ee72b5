"""The request queue that workers share, with at-least-once delivery."""
