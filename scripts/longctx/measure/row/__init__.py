"""What a row of a request may claim: verdict, reasons, and the row made of them."""
