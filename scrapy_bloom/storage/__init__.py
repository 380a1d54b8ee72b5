"""Operations on stored data, and stores that execute them: in Redis and in memory.

Their meaning belongs to `filter`.
"""
