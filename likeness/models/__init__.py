"""What MODEL means on the command line: networks of other toolkits behind one way of embedding."""
