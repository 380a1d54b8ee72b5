"""Operations on stored data, and stores that execute them: in Redis and in memory.

Only `filter` knows what the data mean.
"""
