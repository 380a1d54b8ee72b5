local filter = load_filter()
return numbered(filter, filter.forget, '')
