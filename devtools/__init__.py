"""Tools that tests, benchmarks and the demo share: a site, servers, crawling processes. Not a part of the package."""
