"""Filter, queue, worker and scheduler as atomic scripts. Nothing imports them yet: they are to replace today's."""
