"""The request queue that workers share: at-least-once delivery. Knows no filter and no spider."""
