return call.numbered(filter.check)
