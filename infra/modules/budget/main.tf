variable "name" {
  type = string
}

variable "billing_account" {
  type = string
}

variable "amount" {
  description = "Whole units of the account's currency, a month."
  type        = number
}

variable "numbers" {
  description = "Numbers of the projects."
  type        = set(string)
}

resource "google_billing_budget" "month" {
  billing_account = var.billing_account
  display_name    = var.name

  budget_filter {
    projects        = [for number in var.numbers : "projects/${number}"]
    calendar_period = "MONTH"
  }
  amount {
    specified_amount {
      units = tostring(var.amount)
    }
  }
  # A budget stops nothing: it writes mails.
  threshold_rules {
    threshold_percent = 0.5
  }
  threshold_rules {
    threshold_percent = 0.9
  }
  threshold_rules {
    threshold_percent = 1.0
    spend_basis       = "FORECASTED_SPEND"
  }
}

output "made" {
  description = "All resources, for the tests of the root."
  value = {
    billing_budget_month = google_billing_budget.month
  }
}
