return call.numbered(filter.forget)
